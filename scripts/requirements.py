"""Prints requirements for the set-up script.

requirements.py extra EXTRA NAME          the pin of NAME in that extra of pyproject.toml
requirements.py needs NAME [SKIP ...]     what the installed distribution NAME requires here, without SKIP
"""

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement  # the one copy that every fresh venv has


def main(verb: str, *words: str) -> None:
    if verb == "extra":
        extra, name = words
        extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
        print(next(pin for pin in extras[extra] if re.split(r"[=<>\[]", pin)[0] == name))
    else:
        name, *skipped = words
        for line in importlib.metadata.requires(name) or ():
            need = Requirement(line)
            if need.name not in skipped and (need.marker is None or need.marker.evaluate({"extra": ""})):
                need.marker = None
                print(need)


main(*sys.argv[1:])
