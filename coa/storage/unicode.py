"""Text that can be written as UTF-8."""


def whole(text: str) -> str:
    """The text with halves of surrogate pairs, which JSON may hold and UTF-8 may not, replaced by question marks."""
    return text.encode(errors="replace").decode()
