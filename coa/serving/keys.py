"""API keys: a file of JSON lines that holds a hash of each, and never the key itself.

A key is `coa-ID-SECRET`. Its secret has 256 random bits, so one round of SHA-256 is enough: slow hashes are needed only
for passwords that people choose.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from coa.errors import UserError
from coa.serving.faults import ApiError
from coa.serving.limits.quotas import Quota
from coa.storage.files import replacing

PREFIX = "coa"
_NOBODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Key:
    id: str
    name: str
    """Name of the key's owner, for the server's operator."""
    sha256: str
    created: int
    """Seconds since 1970."""
    revoked: int | None = None
    quota: Quota = field(default_factory=Quota)


class KeyFile:
    """The keys of a server. A file that another process has changed is read again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at: tuple[int, int] | None = None
        self._keys: dict[str, Key] = {}

    def add(self, name: str, quota: Quota, now: int) -> str:
        """Adds a key and returns it; it can't be read again."""
        identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        text = f"{PREFIX}-{identity}-{secret}"
        self._write([*self.all(), Key(identity, name, _hash(text), now, quota=quota)])
        return text

    def revoke(self, id: str, now: int) -> None:
        keys = {key.id: key for key in self.all()}
        if id not in keys:
            raise UserError(f"{self._path}: no key {id!r}; it has {', '.join(keys) or 'none'}")
        keys[id] = replace(keys[id], revoked=keys[id].revoked or now)
        self._write(keys.values())

    def all(self) -> tuple[Key, ...]:
        """All keys, in the order of creation."""
        self._refresh()
        return tuple(self._keys.values())

    def find(self, text: str) -> Key | None:
        """The key with this text, unless it was revoked. Takes constant time for any text."""
        self._refresh()
        known = self._keys.get(text.removeprefix(f"{PREFIX}-").partition("-")[0])
        same = hmac.compare_digest(known.sha256 if known else _NOBODY, _hash(text))
        return known if known and same and known.revoked is None else None

    def require(self, text: str) -> Key:
        """The key with this text; raises ApiError if there is no text, or no such key."""
        if not text:
            raise ApiError(401, "missing_api_key", "no API key; send Authorization: Bearer KEY")
        if (key := self.find(text)) is None:
            raise ApiError(401, "invalid_api_key", "no such API key")
        return key

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._keys, self._read_at = {}, None
            return
        if (status.st_mtime_ns, status.st_ino) != self._read_at:
            self._keys = {key.id: key for key in self._read()}
            self._read_at = status.st_mtime_ns, status.st_ino

    def _read(self) -> Iterator[Key]:
        for number, line in enumerate(self._path.read_text().splitlines(), 1):
            try:
                row = json.loads(line)
                yield Key(**{**row, "quota": Quota(**row["quota"])})
            except (ValueError, TypeError, KeyError) as error:
                raise UserError(f"{self._path}, line {number}: not a key ({error})") from error

    def _write(self, keys: Iterable[Key]) -> None:
        with replacing(self._path) as part:
            part.touch(mode=0o600)
            part.write_text("".join(f"{json.dumps(asdict(key))}\n" for key in keys))


def key_of(headers: Mapping[str, str]) -> str:
    """The API key that a request carries, in either of the two usual headers; empty without one. headers: with names in
    lower case."""
    authorization = headers.get("authorization", "").strip()
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "") or authorization


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
