# Everything runs in .venv, made on first use; needs Python 3.11+, make and the package index, no compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := torch==2.13.0

# Where Python keeps no compiled code, as in many containers, each of the many processes of the tests compiles the package again.
export PYTHONDONTWRITEBYTECODE :=

INTERPRETED := tests/contracts/test_ops.py tests/ops/test_triton.py tests/ops/test_dplr_spectrum.py  # the Triton kernels, where there is no GPU

.PHONY: install run test tests slow contract soak mutants gpu-test lint bench docs clean
.DEFAULT_GOAL := test

# The exact torch first: a looser request may bring gigabytes of CUDA packages. `--no-build-isolation` keeps the C++ build on the tools
# installed here, so that a later `make` rebuilds incrementally.
$(STAMP): pyproject.toml CMakeLists.txt $(wildcard csrc/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install -q $(TORCH)
	$(BIN)/pip install -q "scikit-build-core>=0.11" "nanobind>=2.4" "cmake>=3.24" ninja
	@echo "The next command compiles the CPU kernels, if there is a C++ compiler: several minutes on two cores."
	$(BIN)/pip install -q --no-build-isolation -e ".[train,data,bench,dev]"
	touch $@

install: $(STAMP)

run: $(STAMP)
	$(BIN)/longscan train --config recipes/quickstart/basic_motions.yaml --out runs/basic_motions --overwrite

# The linters use one core: together with the tests they take less time than before them.
test: $(STAMP)
	$(MAKE) --no-print-directory -j 2 lint tests

# Six generated cases for each property and setting. `make contract` has hundreds.
tests: $(STAMP)
	LONGSCAN_EXAMPLES=6 $(BIN)/pytest -q -n 2 --dist worksteal -m "not slow"
	TRITON_INTERPRET=1 LONGSCAN_BACKEND=triton LONGSCAN_EXAMPLES=2 $(BIN)/pytest -q -n 2 --dist worksteal -m "not slow" $(INTERPRETED)

slow: $(STAMP)
	$(BIN)/pytest -q -n 2 -m slow --ignore tests/contracts

# Cases per property and setting; an op or layer has five properties at least, so 400 make 2,000 and more for each.
CASES ?= 400
contract: $(STAMP)
	LONGSCAN_EXAMPLES=$(CASES) $(BIN)/pytest -q -n 2 tests/contracts
	TRITON_INTERPRET=1 LONGSCAN_BACKEND=triton LONGSCAN_EXAMPLES=5 $(BIN)/pytest -q -n 2 $(INTERPRETED)

# Reliability over any number of minutes: continues where the last call ended, and adds its counts to results/reliability.jsonl.
MINUTES ?= 10
SOAK ?=
soak: $(STAMP)
	$(BIN)/python tests/soak/run.py --minutes $(MINUTES) $(SOAK)

# One-token changes to the package: which of them do the tests miss? Hours on two cores; SEED chooses others.
MUTANTS ?= 200
SEED ?= 1
mutants: $(STAMP)
	$(BIN)/pip install -q --no-build-isolation -e ".[mutation]"
	$(BIN)/python tests/mutation/campaign.py choose --seed $(SEED) --count $(MUTANTS) --out build/mutants-$(SEED).jsonl
	$(BIN)/python tests/mutation/campaign.py cover --out build/coverage-$(SEED).json
	$(BIN)/python tests/mutation/campaign.py run build/mutants-$(SEED).jsonl --coverage build/coverage-$(SEED).json --out build/mutants-$(SEED)-results.jsonl
	$(BIN)/python tests/mutation/campaign.py report build/mutants-$(SEED)-results.jsonl

# What needs a GPU, in the Python environment that has a torch for it; the records go to results/gpu_tests.jsonl.
GPU_PYTHON ?= python3
gpu-test:
	$(GPU_PYTHON) tests/soak/gpu.py $(GPU_TEST)

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks packaging
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

# The examples of the pages are small: one thread runs them as fast as several, and much faster where other processes use the cores.
docs: $(STAMP)
	$(BIN)/pip install -q --no-build-isolation -e ".[docs]"
	OMP_NUM_THREADS=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site runs
