"""Rate limits of keys: pure, with the time as an argument."""

from dataclasses import dataclass, replace

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Quota:
    """Rate limits of a key; None is no limit."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """A token bucket: it fills at a constant rate, up to the amount of one minute.

    Its level may fall below zero, since a request that may use more than the amount of a minute is let in when it is
    full; the next request waits for the refill.
    """

    per_minute: float
    level: float
    at: float
    """Time at which it had this level."""

    @classmethod
    def full(cls, per_minute: float, now: float) -> "Bucket":
        return cls(per_minute, per_minute, now)

    def filled(self, now: float) -> "Bucket":
        gained = self.per_minute * max(0.0, now - self.at) / MINUTE_S
        return replace(self, level=min(self.per_minute, self.level + gained), at=max(now, self.at))

    def wait_s(self, now: float, amount: float) -> float:
        """Seconds until it holds `amount`, or is full."""
        missing = min(amount, self.per_minute) - self.filled(now).level
        return max(0.0, missing * MINUTE_S / self.per_minute)

    def take(self, now: float, amount: float) -> "Bucket":
        """A negative amount is given back."""
        filled = self.filled(now)
        return replace(filled, level=min(self.per_minute, filled.level - amount))


class Quotas:
    """The buckets of all keys."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def admit(self, key: str, quota: Quota, now: float) -> float:
        """Counts a request and returns 0, or returns the seconds after which the key may try again."""
        requests = self._bucket(key, "requests", quota.requests_per_minute, now)
        tokens = self._bucket(key, "tokens", quota.tokens_per_minute, now)
        wait = max(requests.wait_s(now, 1.0) if requests else 0.0, tokens.wait_s(now, 1.0) if tokens else 0.0)
        if not wait and requests:
            self._buckets[key, "requests"] = requests.take(now, 1.0)
        return wait

    def reserve(self, key: str, tokens: int, now: float) -> float:
        """Takes the tokens that a request may use at most, or those of a minute if it may use more, and returns 0; or
        returns the seconds after which the key may try again. Requests that run at the same time can't use more
        together than the key has. The key was admitted before."""
        bucket = self._buckets.get((key, "tokens"))
        if bucket is None:
            return 0.0
        if wait := bucket.wait_s(now, tokens):
            return wait
        self._buckets[key, "tokens"] = bucket.take(now, tokens)
        return 0.0

    def spend(self, key: str, tokens: int, now: float) -> None:
        """Counts the tokens of a request that has ended; negative if it used fewer than were reserved."""
        if bucket := self._buckets.get((key, "tokens")):
            self._buckets[key, "tokens"] = bucket.take(now, tokens)

    def _bucket(self, key: str, what: str, per_minute: float | None, now: float) -> Bucket | None:
        if per_minute is None:
            return None
        bucket = self._buckets.get((key, what))
        if bucket is None or bucket.per_minute != per_minute:
            bucket = self._buckets[key, what] = Bucket.full(per_minute, now)
        return bucket
