"""JSON values that are wrong in one place."""

from typing import Any

from hypothesis import strategies as st

JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=4,
)


def spoilt(value: Any, at: list[int], junk: Any) -> Any:
    """The value with junk in one place."""
    if not at or not isinstance(value, dict | list) or not value:
        return junk
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[at[0] % len(keys)]
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = spoilt(value[key], at[1:], junk)
    return copy
