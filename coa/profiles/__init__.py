"""Agent profiles: one file each, found by name."""

from coa.errors import UserError
from coa.extensions import load_extensions
from coa.grammar import Profile, declare
from coa.profiles.code import CODE
from coa.profiles.direct import DIRECT
from coa.profiles.math import MATH
from coa.profiles.mhqa import MHQA
from coa.profiles.multi import MULTI
from coa.profiles.web import WEB

PROFILES: dict[str, Profile] = {profile.name: profile for profile in (CODE, MATH, MHQA, WEB, MULTI, DIRECT)}


def register(profile: Profile) -> None:
    """Makes a profile known by its name, its tags included; raises ValueError for a second one of that name."""
    if PROFILES.setdefault(profile.name, profile) is not profile:
        raise ValueError(f"there is a profile {profile.name!r} already")
    for tag in profile.tags:
        declare(tag)


def profile(name: str) -> Profile:
    """The profile of that name; raises UserError with the known names."""
    if name not in PROFILES:
        raise UserError(f"unknown profile {name!r}: known are {', '.join(PROFILES)}")
    return PROFILES[name]


load_extensions()
