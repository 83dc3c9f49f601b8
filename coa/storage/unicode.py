"""Text that can be written as UTF-8."""


def whole(text: str) -> str:
    """Replaces unpaired surrogates, which JSON may contain and UTF-8 may not, with question marks."""
    return text.encode(errors="replace").decode()
