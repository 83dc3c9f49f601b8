"""Text that can be written as UTF-8."""


def whole(text: str) -> str:
    """Replaces unpaired surrogates, which JSON may contain and UTF-8 may not, with question marks."""
    return text if is_whole(text) else text.encode(errors="replace").decode()


def is_whole(text: str) -> bool:
    """Whether the text can be written as UTF-8. The name of a file that is not UTF-8 can't."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False
