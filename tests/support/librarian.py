"""A language model behind an endpoint that makes, answers and solves questions of documents, by rules:

    python -m tests.support.endpoints --reply tests.support.librarian:reply

It knows one kind of fact, "... written by Roy Trubshaw ...", in a passage whose title is what was written. It is as
fallible as a model: some of its drafts are wrong, some quotations made up, some answers known without the passage.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from coa.seeds import fraction
from coa.tasks.made import requests
from coa.tasks.made.questions import folded, occurs
from coa.tasks.made.requests import UNKNOWN

VERBS = "designed|developed|written|invented|created|introduced|proposed|implemented|built"
_WORD = r"[A-Z][\w'-]+"
FACT = re.compile(rf"\b({VERBS}) by ({_WORD}(?: (?:and |of )?{_WORD})*+)")
ATOMIC = re.compile(rf"By whom was (.+) ({VERBS}) \?")
DESCRIBED = re.compile(r'what the entry on ((?:(?!what the entry on ).)+?) names at the dots of "([^"]+)"')
TAGGED = re.compile(r"<(\w+)>\n(.*?)\n</\1>", re.DOTALL)
DOC = re.compile(r"Doc \d+ \(Title: (.*?)\) ")
ROLE = re.compile(r"You are the (\w+) of a team")
FAMOUS = ("Microsoft", "Intel", "Sony", "IBM")
"""Answers that it knows."""
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


class Block(NamedTuple):
    title: str
    text: str


class Fact(NamedTuple):
    verb: str
    maker: str
    sentence: str


def facts(block: Block) -> list[Fact]:
    sentences = SENTENCE.split(block.text)
    found = [Fact(match[1], match[2], sentence) for sentence in sentences for match in FACT.finditer(sentence)]
    verbs = [fact.verb for fact in found]
    return [fact for fact in found if verbs.count(fact.verb) == 1]


def blocks_of(text: str) -> list[Block]:
    """Passages as requests show them."""
    return [Block(title, body) for title, _, body in (part.partition("\n") for part in text.split("\n\n"))]


def observed(work: str) -> list[Block]:
    """Passages in what the team has found."""
    parts = DOC.split(work)
    return [Block(title, body) for title, body in zip(parts[1::2], parts[2::2], strict=True)]


def cloze(sentence: str, name: str) -> str:
    return re.sub(re.escape(name), "...", sentence, count=1, flags=re.IGNORECASE)


def filled(pattern: str, text: str) -> str:
    """What stands at the dots; "" if the text does not have the sentence."""
    before, _, after = pattern.partition("...")
    found = re.search(re.escape(folded(before)) + "(.+?)" + re.escape(folded(after)), folded(text))
    return found[1].strip() if found else ""


def name_of(description: re.Match[str], blocks: Sequence[Block]) -> str:
    for block in blocks:
        if folded(block.title) == folded(description[1]) and (name := filled(description[2], block.text)):
            return name
    return ""


def resolved(name: str, blocks: Sequence[Block]) -> str:
    """The name itself, in place of what describes it; "" if the passages do not tell."""
    while described := DESCRIBED.search(name):
        inner = name_of(described, blocks)
        if not inner:
            return ""
        name = name.replace(described[0], inner)
    return name


def answer(question: str, blocks: Sequence[Block]) -> str:
    """The answer to an atomic or deeper question, or to both of a merged one."""
    parts = [found for one in question.split(" And ") if (found := answer_of(one, blocks))]
    return " | ".join(parts) if len(parts) == len(question.split(" And ")) else UNKNOWN


def answer_of(question: str, blocks: Sequence[Block]) -> str:
    asked = ATOMIC.fullmatch(question[0].upper() + question[1:])
    name = resolved(asked[1], blocks) if asked else ""
    for block in blocks:
        if asked and name and folded(block.title) == folded(name):
            for fact in facts(block):
                if fact.verb == asked[2]:
                    return fact.maker
    return ""


def propose(block: Block) -> str:
    rows = []
    for fact in facts(block):
        draft = {
            "question": f"By whom was {block.title} {fact.verb} ?",
            "answer": fact.maker,
            "name": block.title,
            "quote": fact.sentence,
        }
        luck = fraction("draft", block.title, fact.sentence)
        if luck < 0.06:
            draft["answer"] = fact.maker.split()[-1]
        elif luck < 0.12:
            draft["quote"] = f"It is well known: {fact.sentence}"
        elif luck < 0.18:
            draft["question"] = f"By whom was {block.title} {fact.verb}, as this passage says ?"
        rows.append(draft)
    return f"Here they are:\n```json\n{json.dumps(rows)}\n```"


def describe(name: str, block: Block) -> str:
    for sentence in SENTENCE.split(block.text):
        if occurs(name, sentence) and folded(sentence).count(folded(name)) == 1 and '"' not in sentence:
            text = f'what the entry on {block.title} names at the dots of "{cloze(sentence, name)}"'
            return json.dumps({"description": text, "other": block.title, "quote": sentence})
    return "{}"


def reply(messages: Sequence[Mapping[str, Any]], seed: int | None) -> str:
    system, asked = messages[0]["content"], messages[-1]["content"]
    if role := ROLE.search(system):
        return of_team(role[1], asked)
    parts = {tag: text.replace("&lt;", "<") for tag, text in TAGGED.findall(asked)}
    blocks = blocks_of(parts.get("passages", parts.get("passage", "")))
    match system.split(".")[0]:
        case begins if requests.PROPOSE.startswith(begins):
            return propose(blocks[0])
        case begins if requests.ANSWER.startswith(begins):
            return answer(parts["question"], blocks)
        case begins if requests.RECALL.startswith(begins):
            known = fraction("known", parts["question"])
            return FAMOUS[int(known * len(FAMOUS))]
        case begins if requests.DESCRIBE.startswith(begins):
            return describe(parts["name"], blocks[0])
        case begins if requests.IDENTIFY.startswith(begins):
            described = DESCRIBED.search(parts["description"])
            return (described and name_of(described, blocks)) or UNKNOWN
        case begins if requests.REPLACE.startswith(begins):
            return parts["question"].replace(parts["name"], parts["description"])
        case begins if requests.MERGE.startswith(begins):
            return f"{parts['first']} And {parts['second'][0].lower()}{parts['second'][1:]}"
        case begins if requests.SPLIT.startswith(begins):
            return json.dumps(parts["question"].split(" And "))
    return "yes"


def of_team(role: str, asked: str) -> str:
    """What the planner, the searcher and the critic of a team write."""
    question, _, work = asked.partition("\n")
    question = question.removeprefix("Question: ")
    blocks = observed(work)
    found = answer(question, blocks)
    if role == "critic":
        return "<reflection> the passages are there</reflection>"
    if role == "planner":
        return f"<answer> {found}</answer>" if work.strip() else "<plan> look up what the question names</plan>"
    done = set(re.findall(r"<wiki_search>\s*(.*?)\s*</wiki_search>", work))
    query = next((query for query in queries(question, blocks) if query not in done), None)
    return f"<wiki_search> {query}</wiki_search>" if query and found == UNKNOWN else "done"


def queries(question: str, blocks: Sequence[Block]) -> Iterator[str]:
    """What is still to be looked up, first things first."""
    for part in question.split(" And "):
        if (asked := ATOMIC.fullmatch(part[0].upper() + part[1:])) and not answer_of(part, blocks):
            described = DESCRIBED.search(asked[1])
            name = resolved(asked[1], blocks)
            if described and not name:
                yield f"{described[1]} {described[2].replace('...', ' ')}"[:300]
            elif name:
                yield f"{name} {asked[2]}"
                yield name
