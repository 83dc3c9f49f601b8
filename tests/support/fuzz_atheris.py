"""Fuzzes one target guided by coverage: `python -m tests.support.fuzz_atheris parser -runs=100000`; needs atheris."""

import sys


def main() -> None:
    import atheris  # pyright: ignore[reportMissingImports]

    name, arguments = sys.argv[1], sys.argv[2:]
    for hook in ("RegEx", "str"):  # much of the reading is done there, out of sight of coverage
        atheris.enabled_hooks.add(hook)
    with atheris.instrument_imports(include=["coa"]):
        from tests.support.fuzz_targets import TARGETS

    def one_input(data: bytes) -> None:
        TARGETS[name](data.decode(errors="surrogateescape"))

    atheris.Setup([sys.argv[0], *arguments], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
