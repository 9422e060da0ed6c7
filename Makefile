# Every target does its own set-up: on a fresh machine `make demo` or `make test` is the only command needed.
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
PY := $(VENV)/bin/python
MODELS := .venv-models
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt
INPUTS := pyproject.toml constraints.txt

# One thread per process: pytest's workers would otherwise fight for the cores.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint test-slow test-models trial bench docs format clean

help:
	@echo "make demo       the tour: Fisher matrices and tangent kernels of a small CNN on the embedded digits"
	@echo "make test       lint, format check, types, tests"
	@echo "make test-slow  the tests that take minutes"
	@echo "make test-models models of transformers, timm, peft and torch_geometric, in an environment of their own"
	@echo "make trial      100,000 generated cases against plain autograd: two hours, goes on where it was stopped"
	@echo "make bench      speed and memory, against other libraries where they are installed"
	@echo "make docs       the documentation site, in site/"
	@echo "make format     format the code and fix what the linter can"
	@echo "make clean      remove caches and built files; the environment stays"

$(PY):
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-test: $(INPUTS) | $(PY)
	$(INSTALL) -e '.[test]'
	@touch $@

$(VENV)/.installed-docs: $(INPUTS) | $(PY)
	$(INSTALL) -e '.[docs]'
	@touch $@

demo: $(VENV)/.installed-test
	$(PY) -m tangentlab.demo

test: lint
	$(PY) -m pytest -n $(JOBS)

lint: $(VENV)/.installed-test
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

test-slow: $(VENV)/.installed-test
	$(PY) -m pytest -n $(JOBS) -m slow

$(MODELS)/.installed: $(INPUTS)
	$(PYTHON) -m venv $(MODELS)
	$(MODELS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]' transformers peft torch_geometric
	$(MODELS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps timm
	@touch $@

test-models: $(MODELS)/.installed
	HF_HUB_OFFLINE=1 $(MODELS)/bin/python -m tests.zoo_models --save

trial: $(VENV)/.installed-test
	$(PY) -m tests.trial --cases 100000 --jobs $(JOBS) --save

bench: $(VENV)/.installed-test
	$(PY) benchmarks/run.py

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

format: $(VENV)/.installed-test
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

clean:
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
