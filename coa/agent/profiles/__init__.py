"""Agent profiles: one file each, found by name."""

from coa.agent.grammar import Profile, declare
from coa.agent.profiles.code import CODE
from coa.agent.profiles.direct import DIRECT
from coa.agent.profiles.math import MATH
from coa.agent.profiles.mhqa import MHQA
from coa.agent.profiles.multi import MULTI
from coa.agent.profiles.web import WEB
from coa.extensions import load_extensions
from coa.registry import Registry

PROFILES = Registry("profile", {profile.name: profile for profile in (CODE, MATH, MHQA, WEB, MULTI, DIRECT)})


def register(profile: Profile) -> None:
    """Makes a profile known by its name, its tags included; raises ValueError for a second one of that name."""
    PROFILES.register(profile.name, profile)
    for tag in profile.tags:
        declare(tag)


def profile(name: str) -> Profile:
    """The profile of that name; raises UserError with the known names."""
    return PROFILES.find(name)


load_extensions()
