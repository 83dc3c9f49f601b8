"""The date in prompts of a chat template that asks for today's, as those of Llama 3, SmolLM3 and Granite do.

A model is trained, served and trained further with the prompts of one day: that on which its training began. The day is
written into the template itself, at its beginning, so that whoever renders it has the same prompts.
"""

import re
from collections.abc import Mapping
from datetime import date
from typing import Any

NOW = "strftime_now"
"""The function that renderers of chat templates have for it: transformers, vLLM and others."""
DIRECTIVES = tuple(f"%{name}" for name in ("-d", "-m", *"aAbBdejmyYDFxHIMSp"))
"""What its formats may hold; the time of day is midnight."""
_BEGUN = re.compile(r"\{#- prompts have the date (\d{4}-\d\d-\d\d) -#\}")


def with_date(template: object, day: date | None = None) -> Any:
    """The chat template with this day in place of today's; one that asks for no date is left as it is. day: None for
    the day that the template has already, else today. template: as a tokenizer of transformers has it; several by their
    names, or None."""
    if isinstance(template, Mapping):
        return {name: with_date(one, day) for name, one in template.items()}
    if not isinstance(template, str) or NOW not in template:
        return template
    if written := date_of(template):
        template = template.partition("\n")[2]
    day = day or written or date.today()
    filters = "".join(f" | replace('{directive}', '{day.strftime(directive)}')" for directive in DIRECTIVES)
    macro = f"{{% macro {NOW}(format) %}}{{{{ format{filters} }}}}{{% endmacro %}}"  # hides the renderer's function
    # Renderers drop the newline behind a block.
    return f"{{#- prompts have the date {day} -#}}{macro}\n{template}"


def date_of(template: object) -> date | None:
    """The day that was written into a chat template, or into the first of several that has one; None if there is
    none."""
    if isinstance(template, Mapping):
        return next(filter(None, map(date_of, template.values())), None)
    found = _BEGUN.match(template) if isinstance(template, str) else None
    return date.fromisoformat(found[1]) if found else None
