# Each target sets up what it needs: a fresh machine wants only Python (3.10 or newer) with venv.
#   make test PYTHON=python3.12 VENV=.venv312     another interpreter, beside the first

PYTHON  ?= python3
VENV    ?= .venv
WORKERS ?= 2

BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
EXTRA  := $(VENV)/share/davis
PHOTOS := $(EXTRA)/.photographs
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo check test test-all docs format clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) $(PHOTOS)  ## see it work on photographs: writes demo.html
	$(BIN)/davis demo

check: $(STAMP)  ## format, lint, types, layers and the quick tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -m "not slow and not heavy" -x -q

test: $(STAMP) $(PHOTOS)  ## all tests that take seconds
	$(PYTEST) -m "not heavy"

test-all: $(STAMP) $(PHOTOS)  ## all tests, those that take minutes too
	$(PYTEST)

docs: $(STAMP)  ## write the pages that are made from the code
	$(BIN)/python docs/generate.py

format: $(STAMP)  ## rewrite the files as `make check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what the targets above left behind
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(STAMP): pyproject.toml constraints.txt
	@echo "setting up $(VENV): some minutes the first time"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# foolbox's wheel for its photographs, beside the packages: what it depends on is not wanted. The demo can do without.
$(PHOTOS): constraints.txt | $(STAMP)
	@mkdir -p $(EXTRA)
	@$(BIN)/python -m pip install --quiet --no-deps --upgrade --constraint constraints.txt --target $(EXTRA) foolbox \
		&& touch $@ || echo "foolbox could not be fetched: going on without its photographs"
