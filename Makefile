# Everything runs in .venv, which the first target that needs it sets up.

PYTHON ?= python3
IMPL ?= numpy
LEVEL ?= standard
MINUTES ?= 3
BIN := .venv/bin
RESULTS := benchmarks/results

# An implementation's first word names the extra that it needs: torch-sdpa needs [torch]. What a
# file of your own needs, EXTRAS names.
FRAMEWORKS := $(sort $(EXTRAS) $(filter torch jax,$(foreach name,$(IMPL),$(firstword $(subst -, ,$(name))))))

.PHONY: help conformance selftest test lint soak bench power clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-28s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo 'For example:'
	@echo '  make conformance IMPL="torch-sdpa jax" LEVEL=smoke'
	@echo '  make conformance IMPL=my_kernel.py:attention EXTRAS=torch'

conformance: .venv/base $(FRAMEWORKS:%=.venv/%) ## judge IMPL (default: numpy) at LEVEL (default: standard)
	$(BIN)/pytest conformance $(foreach name,$(IMPL),--impl=$(name)) --attn-level=$(LEVEL) -q

selftest: .venv/base ## judge the suite: on known faults (ASK=--fast: on some), on what conforms
	$(BIN)/attnspec selftest $(or $(ASK),--level $(LEVEL))
	$(BIN)/attnspec selftest --conforming --level smoke

test: .venv/dev .venv/torch .venv/jax .venv/bench ## run the project's own tests
	$(BIN)/pytest -q

lint: .venv/dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soak: .venv/base ## attack the oracle for MINUTES (default: 3)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/soak.py --minutes $(MINUTES)

bench: .venv/bench ## measure the oracle: benchmarks/results/ (a quarter of an hour; wants a quiet machine)
	@mkdir -p $(RESULTS)
	$(BIN)/python benchmarks/oracle.py --json $(RESULTS)/oracle.json --table $(RESULTS)/oracle.txt --plots $(RESULTS)

power: .venv/bench ## other suites' rules beside attnspec's: benchmarks/results/ (a quarter of an hour)
	@mkdir -p $(RESULTS)
	$(BIN)/python benchmarks/power.py --json $(RESULTS)/power.json --table $(RESULTS)/power.txt --plots $(RESULTS)

clean: ## remove .venv and what the tools leave
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# -- set-up: a stamp for what is installed, renewed when the project's requirements change --------

.venv/base: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/bench .venv/dev .venv/torch .venv/jax: .venv/%: .venv/base
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@
