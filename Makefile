# make train   sets up .venv, then trains the demo on dp 2 x tp 2 x domain 2 simulated devices
# make test    sets up .venv with the PyTorch reference, then runs every check, the quick ones first
# make lint    the quick checks alone
# make accuracy  sets up .venv likewise, then compares credit_jax with CREDIT: the short form of
#                benchmarks/accuracy.py; its report and picture go to benchmarks/reports
# PYTHON=python3.12 names the interpreter that .venv is made with; 3.11 or later.

BIN := .venv/bin
# Two processes share the time that XLA takes to compile the programs of the tests; those
# of one file share what they compile.
WORKERS ?= 2

# Every module is compiled once, at its first import, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: train test accuracy lint check-style check-spelling check-layers check-types check-tests clean
.DEFAULT_GOAL := test

train: .venv/.train
	$(BIN)/python -m credit_jax.train --config configs/tp2_domain2.yaml

test: .venv/.test
	$(MAKE) --no-print-directory check-style
	$(MAKE) --no-print-directory check-spelling
	$(MAKE) --no-print-directory check-layers
	$(MAKE) --no-print-directory check-types
	$(MAKE) --no-print-directory check-tests

accuracy: .venv/.test
	$(BIN)/python -m benchmarks.accuracy --short $(ACCURACY)

lint: .venv/.test
	$(MAKE) --no-print-directory check-style
	$(MAKE) --no-print-directory check-spelling
	$(MAKE) --no-print-directory check-layers
	$(MAKE) --no-print-directory check-types

check-style:
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# Every file that git knows or would add, and the names of the files themselves.
FILES := git ls-files --cached --others --exclude-standard

check-spelling:
	$(FILES) -z | xargs -0 $(BIN)/codespell
	$(FILES) | $(BIN)/codespell -

check-layers:
	$(BIN)/lint-imports

check-types:
	$(BIN)/pyright

check-tests:
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Each mark stands for a finished installation; a change of what is asked for makes it anew.
REQUIRED := pyproject.toml constraints.txt tools/environment.sh

.venv/.train: $(REQUIRED)
	tools/environment.sh train
	@touch $@

.venv/.test: $(REQUIRED) $(wildcard tests/reference/requirements*.txt)
	tools/environment.sh test
	@touch $@ .venv/.train

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache
