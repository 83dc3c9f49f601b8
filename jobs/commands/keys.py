"""`coa keys`: the API keys of a server.

coa keys --file keys.jsonl add alice --requests-per-minute 60       prints the key, once
coa keys --file keys.jsonl list
coa keys --file keys.jsonl revoke 1f0c22a94be1
"""

import time
from argparse import ArgumentParser
from pathlib import Path

from coa.serving.keys import KeyFile
from coa.serving.limits.quotas import Quota
from jobs.commands.command import Command, local_path, positive


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--file", type=local_path, required=True, help="file of the keys, as in serving.keys")
    what = parser.add_subparsers(dest="what", required=True)
    add = what.add_parser("add", help="make a key and print it; it can't be shown again")
    add.add_argument("name", help="name of the key's owner")
    add.add_argument("--requests-per-minute", type=positive)
    add.add_argument("--tokens-per-minute", type=positive)
    what.add_parser("list", help="show ids, names and quotas")
    revoke = what.add_parser("revoke", help="revoke a key; running servers notice with the next request")
    revoke.add_argument("id")


def run(
    file: Path,
    what: str,
    *,
    name: str = "",
    id: str = "",
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
) -> None:
    """Raises UserError if the file is no file of keys, or lacks the id."""
    keys, now = KeyFile(file), int(time.time())
    match what:
        case "add":
            print(keys.add(name, Quota(requests_per_minute, tokens_per_minute), now))
        case "revoke":
            keys.revoke(id, now)
        case _:
            for key in keys.all():
                made = time.strftime("%Y-%m-%d", time.localtime(key.created))
                limits = [
                    f"{amount:g} {of} a minute"
                    for amount, of in (
                        (key.quota.requests_per_minute, "requests"),
                        (key.quota.tokens_per_minute, "tokens"),
                    )
                    if amount is not None
                ]
                state = "revoked" if key.revoked else ", ".join(limits) or "no limit"
                print(f"{key.id}  {made}  {key.name}  ({state})")


COMMAND = Command(name="keys", run=run, arguments=arguments)
