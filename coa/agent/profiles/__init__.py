"""Agent profiles: one file each, found by name."""

from dataclasses import replace

from coa.agent.chain_format import OURS, Formats
from coa.agent.grammar import OBSERVATION, TAGS, Profile, Tag, declare
from coa.agent.profiles.code import CODE
from coa.agent.profiles.direct import DIRECT
from coa.agent.profiles.math import MATH
from coa.agent.profiles.mhqa import MHQA
from coa.agent.profiles.multi import MULTI
from coa.agent.profiles.react import REACT
from coa.agent.profiles.web import WEB
from coa.extensions import load_extensions
from coa.registry import Registry

PROFILES = Registry("profile", {profile.name: profile for profile in (CODE, MATH, MHQA, WEB, MULTI, REACT, DIRECT)})


def register(profile: Profile) -> None:
    """Registers a profile and its tags; raises ValueError if there is another profile of that name."""
    PROFILES.register(profile.name, profile)
    for tag in profile.tags:
        declare(tag)


def with_tools(profile: Profile, name: str, *tools: Tag, guidance: str = "") -> Profile:
    """A copy of a profile with additional tools, under another name. The new tools may be called wherever the profile's
    own tools may be, and may be followed by the same tags. guidance: additional rules.

    Raises ValueError for a profile that calls no tool.
    """
    known, new = {tag.name for tag in profile.tools}, tuple(tag.name for tag in tools)
    if not known:
        raise ValueError(f"the profile {profile.name} calls no tool: its table has no place for one")
    after = tuple(dict.fromkeys(tag for tool in profile.tools for tag in profile.transitions[tool.name]))
    table = {**profile.transitions, **dict.fromkeys(new, after)}
    at = profile.tags.index(TAGS[OBSERVATION])
    return replace(
        profile,
        name=name,
        tags=(*profile.tags[:at], *tools, *profile.tags[at:]),
        transitions={state: (*tags, *new) if known & {*tags} else tags for state, tags in table.items()},
        guidance=f"{profile.guidance} {guidance}".strip(),
    )


def profile(name: str, formats: Formats = OURS) -> Profile:
    """The profile of that name, in its format; raises UserError with the known names."""
    found = PROFILES.find(name)
    return replace(found, format=formats[name]) if name in formats else found


load_extensions()
