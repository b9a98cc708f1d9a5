# Everything a fresh machine needs: Python >= 3.11, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PRESET ?= quick
OUT ?= reproduction_output
JOBS ?= 2
# Of layers, undersampling, mnist and active; none are all.
FIGURES ?=
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint types unit bench reproduce audit docs release-check clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $(READY)

$(VENV)/.ready-%: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$*]"
	@touch $@

demo: $(READY)  ## fit all estimators on the paper's problem; table, figures and a page in demo_output/
	$(BIN)/python -m reproduction.demo --out demo_output

test: lint types unit  ## lint, types, tests but the slow ones

lint: $(READY)  ## style, formatting and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)  ## static types
	$(BIN)/mypy

# Most of the time of the tests is compilation. The kernels, and what computes for longer than it compiles, are tested as
# users compile them; all else is compiled by XLA's older code generator and without optimisation, in a third of the
# time.
XLA := --xla_cpu_multi_thread_eigen=false --xla_cpu_parallel_codegen_split_count=1
QUICKLY := --xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0
# What one process has compiled, the others read, modules of Python, too; a largest size makes them take turns at writing.
CACHE := PYTHONDONTWRITEBYTECODE= JAX_COMPILATION_CACHE_DIR="$(CURDIR)/.jax_cache" JAX_COMPILATION_CACHE_MAX_SIZE=4000000000 \
	JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.2
PYTEST := $(CACHE) OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

OPTIMISED := tests/numerics/test_soft_threshold.py tests/estimators/test_reference.py

unit: $(READY)  ## tests with branch coverage
	XLA_FLAGS="$(XLA)" $(PYTEST) --cov -m "not slow" --cov-report= --cov-fail-under=0 $(OPTIMISED)
	XLA_FLAGS="$(XLA) $(QUICKLY)" $(PYTEST) --cov -m "not slow" --cov-append --cov-report=term $(OPTIMISED:%=--ignore %)

test-slow: $(READY)  ## tests that take minutes: whole examples, faults by the hundred; compiled as users compile
	XLA_FLAGS="$(XLA)" $(PYTEST) -m slow

# PyTorch, a peer to compare with, wants an older mpmath than the tests do.
$(VENV)-bench/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-bench
	grep -v '^mpmath==' constraints.txt > $(VENV)-bench/constraints.txt
	$(VENV)-bench/bin/python -m pip install --quiet --constraint $(VENV)-bench/constraints.txt --editable ".[bench]"
	@touch $@

BENCH := $(VENV)-bench/bin/python
SPEED = $(BENCH) -m pytest benchmarks/speed -o addopts= -W default -q -p no:cacheprovider --benchmark-columns=min -k "$(ONLY)"
# What of it to measure, in pytest's words: ONLY="LISTA and not 784".
ONLY ?= test

bench: $(VENV)-bench/.ready  ## speed beside the machine's floor and beside peers, in results/bench.md; most of an hour
	BENCH_CORES=1 $(SPEED) --benchmark-json=results/bench_1.json
	BENCH_CORES=2 $(SPEED) --benchmark-json=results/bench_2.json
	BENCH_CORES=1 $(BENCH) benchmarks/speed/ratios.py results/bench_ratios.json
	$(BENCH) benchmarks/speed/first_calls.py results/bench_first.json
	$(BENCH) benchmarks/speed/growth.py results/bench_growth
	$(BENCH) benchmarks/speed/render.py results/bench.md results/bench_1.json results/bench_2.json \
		results/bench_ratios.json results/bench_first.json results/bench_growth.json

reproduce: $(READY)  ## the paper's figures, in OUT=reproduction_output (PRESET=quick, standard or paper; JOBS=2)
	$(BIN)/python -m reproduction --preset $(PRESET) --out "$(OUT)" --jobs $(JOBS) $(FIGURES)

audit: $(READY)  ## known vulnerabilities of what is pinned, by pip-audit if that is installed; it asks a service
	@if [ -x $(BIN)/pip-audit ]; then $(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip; \
	else echo "pip-audit is not installed: $(BIN)/pip install pip-audit"; fi

docs: $(VENV)/.ready-docs  ## the documentation, in docs/_build/html: its examples run, its links checked
	$(CACHE) $(BIN)/python docs/build.py

release-check: $(VENV)/.ready-release  ## build what a release holds, in a temporary folder; install and try it there
	$(BIN)/python scripts/release_check.py

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) $(VENV)-bench demo_output reproduction_output .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .jax_cache .coverage docs/_build
