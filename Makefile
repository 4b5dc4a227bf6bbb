# make train   sets up .venv, then trains the demo on dp 2 x tp 2 x domain 2 simulated devices;
#              what it trained before moves to a dated folder in runs/tp2_domain2
# make test    sets up .venv with the PyTorch reference, then runs every check, and all tests but the slow
#              ones; with TESTS= these, too; with TESTS="--slow-since COMMIT", as in .ci/run, those of
#              them that the change since then reaches
# make nightly  what `make test` leaves out: the slow tests (further cases and meshes, fuzzers, benchmarks,
#              runs beside CREDIT's trainer; `make slow`), `make newest`, `make accuracy` of one model and
#              `make accelerator`; before a release, and when kernels, parallel or the bridge change
# make quick   style, spelling, layers, and the tests of what changed since the last commit: those that
#              mirror it, or else the nearest ones by imports;
#              FILES="credit_jax/ops/conv.py ..." names other files, ARGS="-k name -x" goes to pytest
# make mutants  runs faults of single expressions (tools/mutants.json) against the tests nearest to each:
#              those that are new, or whose file or tests have changed since; ARGS="--room parallel --jobs 2"
# make lint    the quick checks alone
# make docs    the pages of docs/ and the reference from docstrings, in build/docs
# make accuracy  sets up .venv likewise, then compares credit_jax with CREDIT: the short form of
#                `python -m benchmarks.accuracy`; its report and picture go to benchmarks/reports
# make accelerator  puts XLA's compiler for the H100 (0.6 GB of wheels) into .cache/accelerator, compiles
#                the small model's step with it, and fails where kernels or bytes have grown by 5 % over
#                benchmarks/reports/accelerator-small.json, or where a GPU kernel spills more registers
#                than in own_kernels-h100.json; the new counts go to build/accelerator
# make newest  sets up .cache/newest with the newest JAX and the newest of everything else, without
#                torch, on Python 3.12 or later, and runs the tests there that do not need torch or CREDIT;
#                constraints.txt plays no part
# PYTHON=python3.12 names the interpreter that .venv (.cache/newest) is made with; 3.11 (3.12) or later.

BIN := .venv/bin
# Two processes share the time that XLA takes to compile the programs of the tests; those
# of one file share what they compile.
WORKERS ?= 2

# Every module is compiled once, at its first import, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

# The tests of a change are run again and again: the programs that XLA compiles for them are
# kept. Whole runs of the tests keep none: writing them takes 6 % of the time of a worker, and
# one in a hundred is compiled a second time.
CACHE := JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.cache/jax \
  JAX_COMPILATION_CACHE_MAX_SIZE=20000000000 JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=1

.PHONY: environment train test nightly slow quick mutants lint docs accuracy accelerator newest clean
.PHONY: check-style check-spelling check-words check-layers check-types check-docs check-tests
.DEFAULT_GOAL := test

# On Linux, malloc with huge pages: 11.5 samples a second instead of 9.6, with half the system's time.
train: .venv/.train
	GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(BIN)/credit-jax train --config configs/tp2_domain2.yaml --fresh

# One core checks the types while the other makes the other checks.
test: .venv/.test
	$(MAKE) --no-print-directory -j2 --output-sync=target \
	  check-types check-style check-spelling check-words check-layers check-docs
	$(MAKE) --no-print-directory check-tests

nightly: .venv/.test
	$(MAKE) --keep-going slow newest accuracy accelerator \
	  ACCURACY="--models wxformer --no-own --out build/accuracy"

slow: .venv/.test
	CI=true $(PYTEST) --jaxtyping-packages= -m slow

lint: .venv/.test
	$(MAKE) --no-print-directory check-style check-spelling check-words check-layers
	$(MAKE) --no-print-directory check-types

quick: .venv/.test
	$(MAKE) --no-print-directory check-style check-spelling check-words check-layers
	@tests=$$($(BIN)/python -m tools.touched $(FILES)) || exit; \
	echo "tests: $${tests:-none}"; test -z "$$tests" || \
	$(CACHE) $(BIN)/python -m pytest -q $(ARGS) $$tests

mutants: .venv/.test
	$(CACHE) $(BIN)/python -m tools.mutants $(ARGS)

docs: .venv/.test
	$(MAKE) --no-print-directory check-docs

accuracy: .venv/.test
	$(BIN)/python -m benchmarks.accuracy --short $(ACCURACY)

# What is counted depends on the versions in constraints.txt, not on the machine.
accelerator: .venv/.test
	$(BIN)/python -m benchmarks.accelerator --config small --remat none --out build/accelerator \
	  --name accelerator-small --against benchmarks/reports/accelerator-small.json $(ACCELERATOR)
	$(BIN)/python -m benchmarks.accelerator.own_kernels --no-definitions --out build/accelerator \
	  --against benchmarks/reports/own_kernels-h100.json

check-style:
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# Every file that git knows or would add, and the names of the files themselves.
TEXT := git ls-files --cached --others --exclude-standard

check-spelling:
	$(TEXT) -z | xargs -0 $(BIN)/codespell
	$(TEXT) | $(BIN)/codespell -

check-words:
	$(BIN)/python -m tools.words
	$(BIN)/python -m tools.house --check

check-layers:
	$(BIN)/lint-imports
	$(BIN)/python -m tools.import_style

check-types:
	$(BIN)/pyright

# A link that leads nowhere, or a docstring that names no argument of its function, is an error.
check-docs:
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

newest: BIN := .cache/newest/bin
newest:
	tools/environment.sh newest
	CI=true $(PYTEST) --without-torch $(TESTS)

TESTS ?= -m "not slow"
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
  --durations 30 --durations-min 5

# Annotations of arrays, whose checks take a fifth of the time of tracing, are checked by
# `make quick` and `make newest`.
check-tests:
	CI=true $(PYTEST) --jaxtyping-packages= $(TESTS)

# Each mark stands for a finished installation; a change of what is asked for makes it anew.
REQUIRED := pyproject.toml constraints.txt tools/environment.sh

.venv/.train: $(REQUIRED)
	tools/environment.sh train
	@touch $@

environment: .venv/.test

.venv/.test: $(REQUIRED) $(wildcard tests/reference/requirements*.txt)
	tools/environment.sh test
	@touch $@ .venv/.train

clean:
	rm -rf .venv .cache build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache
