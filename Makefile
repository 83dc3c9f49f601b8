# `make demo` and `make test` set up whatever is missing first; nothing else is needed on a bare Linux machine.
.PHONY: demo real test test-v2 gpu-proof nightly check setup setup-slow

run_dir ?= runs/demo

demo: setup
	.venv/bin/coa train --recipe tiny run_dir=$(run_dir)

# A pretrained model on tasks of reasoning-gym: measured as it comes, after fine-tuning and after RL.
model ?= HuggingFaceTB/SmolLM2-135M-Instruct

real: setup
	COA_EXTENSIONS=docs.examples.gym_experts .venv/bin/coa train --recipe docs/examples/gym.yaml \
	    run_dir=runs/real model.path=$(model)
	@echo 'ask it: COA_EXTENSIONS=docs.examples.gym_experts .venv/bin/coa ask --model runs/real/model "What is 41 - 17 + 233 ?"'

# failures=FILE: where the gate reads what failed. A worker that crashes is not replaced: the run is red, and xdist may
# wait for ever for a replacement that gets a single test.
test: setup
	.venv/bin/python -m pytest -n 2 --max-worker-restart 0 --dist loadfile -m "not slow and not gpu" $(if $(failures),--failures=$(failures))

# Engines and their weights under vLLM's runner for GPUs and its asynchronous scheduler, by Triton's interpreter.
test-v2: setup
	PYTHONPATH=tests/support/v2 COA_V2=1 COA_ASYNC=1 .venv/bin/python -m pytest \
	    tests/actors/rollout/test_engine.py tests/actors/rollout/test_other_models.py tests/actors/weights/test_loader.py

# What one GPU gives, in eight minutes at most; one line where there is none.
gpu-proof:
	@$(or $(wildcard .venv/bin/python),python3) -m benchmarks.gpu

# All tests but those that need a GPU, with random inputs; `part=cluster` runs one part (CONTRIBUTING.md has a table).
part ?= core models cluster stages runs serve faults chaos random

nightly: setup-slow
	@for one in $(part); do \
	    COA_FUZZ=100000 .venv/bin/python -m pytest -m "not gpu" --part=$$one || red="$$red $$one"; \
	done; [ -z "$$red" ] || { echo "red:$$red" >&2; exit 1; }

check: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright
	.venv/bin/vulture

setup:
	@bash scripts/setup.sh

setup-slow:
	@bash scripts/setup_slow.sh
