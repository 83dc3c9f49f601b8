"""The mathematics agent: the code agent's table, for a result in LaTeX (paper, D.3)."""

from dataclasses import replace

from coa.agent.profiles.code import CODE

MATH = replace(
    CODE,
    name="math",
    guidance=(
        "Begin with exactly one plan. A reflection reads the latest result; thinking looks ahead. Use no files. "
        r"The answer holds the result alone, in LaTeX, as \boxed{...}."
    ),
)
