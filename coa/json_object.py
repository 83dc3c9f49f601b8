"""The types of a JSON object."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
"""One that was read, whose values nobody has looked at yet, or one that will be written."""
JsonView = Mapping[str, Any]
"""One that is not changed."""
