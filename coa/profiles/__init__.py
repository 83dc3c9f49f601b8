"""Agent profiles: one file each, found by name."""

from coa.errors import UserError
from coa.grammar import Profile
from coa.profiles.code import CODE
from coa.profiles.mhqa import MHQA
from coa.profiles.web import WEB

PROFILES: dict[str, Profile] = {profile.name: profile for profile in (CODE, MHQA, WEB)}


def profile(name: str) -> Profile:
    """The profile of that name; raises UserError with the known names."""
    if name not in PROFILES:
        raise UserError(f"unknown profile {name!r}: known are {', '.join(PROFILES)}")
    return PROFILES[name]
