"""Which tasks ask the same question."""

import pytest

from coa.tasks.questions import question_key, repeats
from coa.tasks.remarks import remarks_on
from coa.types import Task


@pytest.mark.parametrize(
    "other",
    ["what is  3+4", "What is 3 + 4?", "\u201cWhat is 3 + 4 ?\u201d", "What is the 3 + 4.", "What is \uff13 + 4 ?"],
)
def test_the_same_question_is_written_in_many_ways(other: str) -> None:
    assert question_key(other) == question_key("What is 3 + 4 ?")


@pytest.mark.parametrize(
    "other", ["What is 3 * 4 ?", "What is 3 - 4 ?", "What is 34 ?", "What is 3.4 ?", "What is -3 + 4"]
)
def test_another_sign_or_number_is_another_question(other: str) -> None:
    assert question_key(other) != question_key("What is 3 + 4 ?")


def test_questions_of_stops_alone_are_told_apart() -> None:
    assert question_key("?") != question_key("??")


def test_rows_that_repeat_a_question_are_counted_and_told() -> None:
    tasks = [
        Task(id=str(number), question=question, answers=("7",), profile="math", family="f")
        for number, question in enumerate(["What is 7 ?", "what is 7", "Who ?", "What is 7."])
    ]
    assert repeats(tasks) == 2
    assert list(remarks_on("t.csv", tasks)) == ["t.csv: 2 of 4 rows repeat the question of an earlier row"]
    assert not list(remarks_on("t.csv", tasks[1:3]))
