# Every target sets up what it needs; the first one on a fresh machine takes a few minutes for that.
PYTHON ?= python3
# Tests at a time; each may start a service and a trainer (1 GB).
JOBS ?= 2
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder
BIN := .venv/bin
READY := .venv/.ready
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --durations=10 --durations-min=1

.PHONY: setup demo test test-long-tail test-full test-quick chaos test-openai check format serve clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt .ci/install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Tunesmith needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	.ci/install
	@touch $@

demo: setup
	$(BIN)/tunesmith demo

serve: setup
	$(BIN)/tunesmith serve

# A file's tests stay in one process, so that those that measure or share a service run one by one.
# tests/conftest.py orders the files; tests/long_tail.py lists what only test-full runs.
test: setup
	$(PYTEST) $(PARALLEL) -m "not full"

test-long-tail: setup
	$(PYTEST) $(PARALLEL) -m full

test-full: test test-long-tail

# Neither real databases and brokers nor tests that start the whole service.
test-quick: setup
	$(PYTEST) $(PARALLEL) -m "not full and not stacks and not slow"

# kill -9 of trainers, supervisors and workers, thirty times each: half an hour on two cores.
chaos: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.chaos

# The strict client suite with the newest openai package there is, beside the pinned one.
test-openai: setup
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target .venv/newest openai
	OMP_NUM_THREADS=1 PYTHONPATH=.venv/newest $(BIN)/python -m pytest tests/server/test_openai_client.py -m "not stacks"

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
