"""The table that maps tools of other systems to ours, by name; a user's file extends it.

web_search(query="Vexon Labs")  ->  ToolCall("web_search", "Vexon Labs")

# tools.yaml (or .json)
ask_the_web: web_search                          the argument is found by its usual names
search_agent: {tag: web_search, argument: task}
submit: answer                                   a tool by which an agent gives its final answer
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import yaml

from coa.agent.grammar import ANSWER, TAGS, Form, Kind, Profile
from coa.distill.sources.foreign import Reason, Refused
from coa.distill.sources.messages import json_in
from coa.errors import UserError
from coa.json_object import JsonView
from coa.tools.base import ToolCall
from coa.tools.code import read_program


@dataclass(frozen=True, slots=True)
class Slot:
    """Our tool for a tool of another system."""

    tags: tuple[str, ...]
    """Our tags; of several, the first one that the profile has is used."""
    argument: str = ""
    """The tool's argument that becomes the body of the tag; empty to find it by its usual names."""


ToolTable = Mapping[str, Slot]

_NAMES = {
    ("web_search",): "web_search google_search bing_search duckduckgo_search baidu_search yahoo_search bocha_search "
    "tavily_search serper_search search_web internet_search browser_search",
    ("web_search", "wiki_search"): "search search_tool",
    ("wiki_search", "web_search"): "retrieve retriever retrieval lookup",
    ("wiki_search",): "wiki_search wikipedia_search wikipedia search_wikipedia wiki",
    ("crawl_page",): "crawl_page crawl_pages crawl visit_webpage visit_page visit fetch fetch_url fetch_page "
    "browse open_url read_page read_url web_fetch scrape",
    ("code",): "code python python_interpreter python_repl python_tool run_python execute_python execute_code "
    "run_code code_interpreter execute interpreter",
    (ANSWER,): "final_answer answer finish submit submit_answer give_answer",
}
DEFAULTS: ToolTable = {
    **{name: Slot(tags) for tags, names in _NAMES.items() for name in names.split()},
    # The one managed agent of the published deep research examples of smolagents, and of OAgents.
    "search_agent": Slot(("web_search",), "task"),
}
ARGUMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "web_search": ("query", "queries", "q", "search_query", "keywords", "question", "text", "input"),
        "wiki_search": ("query", "queries", "q", "search_query", "title", "entity", "topic", "keywords", "input"),
        "crawl_page": ("url", "urls", "link", "address", "page", "input"),
        "code": ("code", "source", "script", "program", "python", "command", "input"),
        ANSWER: ("answer", "final_answer", "result", "output", "text", "input"),
    }
)
"""Usual names of the argument for each tag, the likeliest first."""


def read_tools(path: Path | None) -> ToolTable:
    """The default table with the additions and changes of a YAML or JSON file; raises UserError for a bad file."""
    if path is None:
        return DEFAULTS
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read as YAML or JSON") from error
    if not isinstance(entries, dict):
        raise UserError(f"{path}: expected a table such as `my_search: web_search`")
    return {**DEFAULTS, **{str(name): _slot(f"{path}, {name}", entry) for name, entry in entries.items()}}


def _slot(where: str, entry: object) -> Slot:
    known = [tag.name for tag in TAGS.values() if tag.kind in (Kind.TOOL, Kind.TERMINAL)]
    match entry:
        case str(tag):
            slot = Slot((tag,))
        case {"tag": str(tag), "argument": str(argument), **rest} if not rest:
            slot = Slot((tag,), argument)
        case {"tag": str(tag), **rest} if not rest:
            slot = Slot((tag,))
        case _:
            raise UserError(f"{where}: expected a tag, or a tag and an argument")
    if slot.tags[0] not in known:
        raise UserError(f"{where}: {slot.tags[0]!r} is not a tool; tools are {', '.join(known)}")
    return slot


def slot_of(name: str, table: ToolTable) -> Slot | None:
    """Our tool for a tool of another system: `Web Search` and `web-search` count as `web_search`, too."""
    return table.get(name) or table.get(re.sub(r"[ -]", "_", name.strip().lower()))


def call_of(name: str, arguments: JsonView | str, table: ToolTable, profile: Profile) -> ToolCall:
    """Our call for a call of another system; the tool may be `answer`. Raises Refused."""
    mine = {ANSWER, *(tag.name for tag in profile.tools)}
    slot = slot_of(name, table) or (Slot((name,)) if name in mine else None)
    if slot is None:
        raise Refused(Reason.UNKNOWN_TOOL, name)
    tag = next((tag for tag in slot.tags if tag in mine), None)
    if tag is None:
        raise Refused(Reason.NOT_OF_PROFILE, f"{name} is {slot.tags[0]}, which profile {profile.name} lacks")
    return ToolCall(tag, _body(name, tag, slot.argument, as_arguments(arguments)))


def as_arguments(arguments: JsonView | str) -> JsonView | str:
    """The arguments as an object if they are its JSON text, as endpoints send them; otherwise unchanged."""
    if isinstance(arguments, str):
        parsed = json_in(arguments)
        if isinstance(parsed, str) and isinstance(again := as_arguments(parsed), dict):
            return again  # some endpoints and data sets write them as text twice
        return parsed if isinstance(parsed, dict | str) else arguments
    return arguments


def _body(name: str, tag: str, argument: str, arguments: JsonView | str) -> str:
    if not isinstance(arguments, str):
        names = [argument] if argument else ARGUMENTS.get(tag, ())
        found = next((arguments[one] for one in names if one in arguments), None)
        if found is None and not argument and len(arguments) == 1:
            [found] = arguments.values()
        arguments = _as_text(found, tag)
    if not arguments.strip():
        raise Refused(Reason.UNKNOWN_ARGUMENT, name)
    match TAGS[tag].form:
        case Form.LINE:
            return " ".join(arguments.split())
        case Form.PROGRAM:
            return _fenced(arguments)
    return arguments.strip()


def _as_text(value: object, tag: str) -> str:
    """The value as a tag's body; "" for a value that can be written in several ways."""
    match value:
        case str():
            return value
        case [str(one)]:
            return one
        case [*many] if tag == "crawl_page" and all(isinstance(one, str) for one in many):
            return " | ".join(many)
        case bool() | int() | float() if tag == ANSWER:
            return str(value)
        case list() | dict() if tag == ANSWER:
            return json.dumps(value, ensure_ascii=False)
    return ""


def _fenced(text: str) -> str:
    """The program in a fence, as the prompts ask for it, if a fence leaves the program unchanged."""
    program = read_program(text)
    fenced = f"```py\n{program.source.strip()}\n```" + (f"\n```sh\n{program.stdin}```" if program.stdin else "")
    again = read_program(fenced)
    same = (again.source.strip(), again.stdin) == (program.source.strip(), program.stdin)
    return fenced if same else text.strip()
