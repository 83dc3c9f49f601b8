r"""Compares dates, times of day, ranges and other numbers side by side, with which nothing is calculated.

same_written("2020-12-05", "2020-05-12") is False
"""

import calendar
import math
import re

from coa.grading.latex import unstyled

_MONTHS = {name.lower(): at for names in (calendar.month_name, calendar.month_abbr) for at, name in enumerate(names)}
_MONTHS["sept"] = 9
_DATES = (
    re.compile(r"(?P<year>\d{4})(?P<mark>[-/.])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})"),
    re.compile(r"(?:(?P<year>\d{4}) ?年 ?)?(?P<month>\d{1,2}) ?月(?: ?(?P<day>\d{1,2}) ?[日号])?"),
    re.compile(
        r"(?:[a-z]{3,6}day,? )?(?:(?:the )?(?P<day>\d{1,2})(?:st|nd|rd|th)?\.? (?:of )?)?(?P<month>[a-z]{3,9})\.?"
        r"(?: (?:the )?(?P<after>\d{1,2})(?:st|nd|rd|th)?)?(?:,? (?:of )?(?P<year>\d{4}))?",
        re.IGNORECASE,
    ),
)
_BESIDE = re.compile(r"\d+(?: ?[-:] ?\d+)+|\d+(?:/\d+){2,}|\d+(?:\.\d+){2,}")
_TIME = re.compile(r"([01]?\d|2[0-4])(?: ?: ?([0-5]\d))?(?: ?([ap])\.? ?m\.?)?", re.IGNORECASE)


def same_written(found: str, right: str) -> bool | None:
    """Whether an answer has the numbers of an accepted date, time, range or score; None if the accepted answer is none.

    A ratio in lowest terms (`3:20`) may be a time, too, and is not decided here unless the times are the same.
    """
    found, right = unstyled(found).strip(), unstyled(right).strip()
    if date := _date(right):
        return _date(found) == date
    if time := _TIME.fullmatch(right):
        if not time[3] and not time[2]:
            return None
        same = _same_time(_TIME.fullmatch(found), time)
        ratio = not time[3] and math.gcd(int(time[1]), int(time[2])) == 1
        return same or (None if ratio else False)
    if ":" in right or not _BESIDE.fullmatch(right):
        return None
    return bool(_BESIDE.fullmatch(found)) and _numbers(found) == _numbers(right)


def _date(text: str) -> tuple[int, int, int] | None:
    """Year, month and day, each 0 if it is not given; None for what is no date, and for a month alone."""
    date = next((found.groupdict() for pattern in _DATES if (found := pattern.fullmatch(text))), {})
    month, days = date.get("month") or "", [day for name in ("day", "after") if (day := date.get(name))]
    if len(days) > 1 or not (days or date.get("year")) or not (month.isdigit() or month.lower() in _MONTHS):
        return None
    return int(date["year"] or 0), _MONTHS.get(month.lower()) or int(month), int(days[0] if days else 0)


def _same_time(found: re.Match[str] | None, right: re.Match[str]) -> bool:
    if found is None or not (found[2] or found[3]):
        return False
    halves = {half.lower() for half in (found[3], right[3]) if half}
    hours, others = int(found[1]), int(right[1])
    if len(halves) == 1 and max(hours, others) > 12:
        hours, others = ((int(time[1]) + 12 * ((time[3] or "").lower() == "p")) for time in (found, right))
    return len(halves) < 2 and (hours, int(found[2] or 0)) == (others, int(right[2] or 0))


def _numbers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d{1,4000}", text)]
