"""The date in a model's prompts: that of the day on which its training began, whoever renders them and when."""

from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils

from coa.agent.chat_template import date_of, with_date
from coa.agent.codec import Codec
from coa.agent.profiles import profile
from coa.agent.tokenizer import save_tokenizer, train_tokenizer
from coa.distill.dataset.tokens import fingerprint
from tests.support.tiny import TEXTS

FIRST, NEXT = date(2026, 5, 1), date(2026, 11, 26)
MESSAGE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}"
LLAMA = (
    "{%- if not date_string is defined %}\n    {%- if strftime_now is defined %}\n"
    '        {%- set date_string = strftime_now("%d %b %Y") %}\n    {%- else %}\n'
    '        {%- set date_string = "26 Jul 2024" %}\n    {%- endif %}\n{%- endif %}\n'
    '{{- "Today Date: " + date_string + "\\n\\n" }}'
)
SMOLLM = '{%- set today = strftime_now("%d %B %Y") -%}{{- "Today Date: " ~ today ~ "\\n" -}}'
GRANITE = "{%- set system = \"Today's Date: \" + strftime_now('%B %d, %Y') + '.' %}{{ system }}"
MISTRAL = '{%- macro head(day) %}{{ "The current date is " + day }}{% endmacro %}{{ head(strftime_now("%Y-%m-%d")) }}\n'
NESTED = "{%- macro head() %}{{ strftime_now('%A %-d/%-m/%y %H:%M') }}{% endmacro %}  {{ head() }} "
NO_DATE = "  {%- if messages %}\nBegin {% endif %}"


@pytest.fixture
def today(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that sets the day for renderers of chat templates and for us."""

    def be(day: date) -> None:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> "Clock":
                return cls(day.year, day.month, day.day, 15, 30)

        class Day(date):
            @classmethod
            def today(cls) -> "Day":
                return cls(day.year, day.month, day.day)

        monkeypatch.setattr(chat_template_utils, "datetime", Clock)
        monkeypatch.setattr("coa.agent.chat_template.date", Day)

    be(FIRST)
    return be


def made(folder: Path, template: str) -> Any:
    save_tokenizer(train_tokenizer(TEXTS, (), vocabulary=400), folder)
    (folder / "chat_template.jinja").write_text(template + MESSAGE)
    return AutoTokenizer.from_pretrained(folder)


def rendered(tokenizer: Any) -> str:
    return str(tokenizer.apply_chat_template([{"role": "user", "content": "Who?"}], tokenize=False))


@pytest.mark.parametrize(
    ("template", "beginning"),
    [
        (LLAMA, "Today Date: 01 May 2026\n\n"),
        (SMOLLM, "Today Date: 01 May 2026\n"),
        (GRANITE, "Today's Date: May 01, 2026."),
        (MISTRAL, "The current date is 2026-05-01\n"),
        (NESTED, "  Friday 1/5/26 00:00 "),
        (NO_DATE, "Begin "),
    ],
)
def test_a_template_that_asks_for_a_date_has_that_of_its_first_day(
    template: str, beginning: str, tmp_path: Path, today: Any
) -> None:
    tokenizer = made(tmp_path / "theirs", template)
    on_the_day = rendered(tokenizer).replace("15:30", "00:00")
    assert on_the_day == f"{beginning}user: Who?"
    tokenizer.chat_template = with_date(tokenizer.chat_template)
    tokenizer.save_pretrained(tmp_path / "ours")
    today(NEXT)
    ours = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert rendered(ours) == on_the_day
    assert with_date(ours.chat_template) == ours.chat_template, "a model that is trained further keeps its day"
    assert date_of(ours.chat_template) == (None if template == NO_DATE else FIRST)


def test_a_model_that_was_never_trained_here_has_todays_date(tmp_path: Path, today: Any) -> None:
    made(tmp_path, SMOLLM)
    question, asked = profile("direct"), {}
    for day in (FIRST, NEXT):
        today(day)
        codec = Codec.load(tmp_path)
        asked[day] = codec.decode(codec.prompt(question, "Who?", instructed=False))
    assert asked == {
        FIRST: "Today Date: 01 May 2026\nuser: Who?",
        NEXT: "Today Date: 26 November 2026\nuser: Who?",
    }


def test_models_are_alike_whatever_their_days_once_they_are_read_with_the_same_one(tmp_path: Path, today: Any) -> None:
    policy, teacher = made(tmp_path / "policy", LLAMA), made(tmp_path / "teacher", LLAMA)
    policy.chat_template = with_date(policy.chat_template)
    policy.save_pretrained(tmp_path / "policy")
    for day in (NEXT, date(2027, 1, 1)):
        today(day)
        assert fingerprint(Codec.load(tmp_path / "policy")) != fingerprint(Codec.load(tmp_path / "teacher"))
        same = fingerprint(Codec.load(tmp_path / "teacher", date_of(policy.chat_template)))
        assert fingerprint(Codec.load(tmp_path / "policy")) == same
        teacher.chat_template = with_date(teacher.chat_template)
        teacher.save_pretrained(tmp_path / "teacher")


def test_each_of_several_templates_has_the_date_and_none_stays_none(today: Any) -> None:
    found = with_date({"default": SMOLLM, "tool_use": NO_DATE})
    assert (date_of(found["default"]), found["tool_use"]) == (FIRST, NO_DATE)
    assert with_date(None) is None
