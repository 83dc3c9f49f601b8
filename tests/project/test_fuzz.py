"""Fuzzing of what reads text that nobody vouches for: no input makes it raise, and none takes long.

1,000 inputs a target in the suite; `COA_FUZZ=100000` is the nightly mode. `python -m tests.support.fuzz_atheris TARGET`
fuzzes the same targets guided by coverage, where atheris is installed.
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.fuzz_targets import TARGETS

INPUTS = int(os.environ.get("COA_FUZZ", "1000"))
PIECES = [
    *("<think>", "</think>", "<Plan>", "</ plan >", "<code>", "</code>", "<answer>", "</answer>", "<web_search>"),
    *("<observation>", "<\\answer>", "<\\\\/code>", "<", "</", ">", "\\", "```py\n", "```python\n", "```sh\n", "```"),
    *("\x00", "\ud800", "\ufffd", "é", "🙂", "\r\n", "\n", " ", "|", "http://a.b/c", "[x](http://a.b)", "file:///etc"),
    *("data:text/html,x", "http://u:p@a.b", "http://[::1]", "http://127.1", '{"q": 1}', "{", "[", "9" * 400, "1e999"),
    *(
        "<an\u017fwer>",
        "<th\u0131nk>",
        "\\boxed{",
        "}",
        "$",
        "\\frac{1}{2}",
        "\\left(",
        "^{",
        "_",
        "4 right",
        "2",
        "<|im_end|>",
    ),
]
anything = st.one_of(
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=6)), max_size=12).map("".join),
    st.binary(max_size=60).map(lambda data: data.decode(errors="surrogateescape")),
    st.text(max_size=60),
)


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_makes_it_raise(name: str) -> None:
    target = TARGETS[name]

    @settings(
        derandomize=INPUTS <= 2000,
        max_examples=INPUTS,
        deadline=None,
        database=None,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much),
    )
    @given(text=anything)
    def run(text: str) -> None:
        target(text)

    run()
