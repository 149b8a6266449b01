# One file for everything a contributor or a user does. Needs only CPython 3.11+ (with venv and pip) and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SHELL  := /bin/bash
# The suite starts hundreds of Python processes: each would compile the sources anew.
unexport PYTHONDONTWRITEBYTECODE

PIP    := -m pip install --quiet --disable-pip-version-check $(if $(LOCKED),--constraint requirements-dev.lock)

.DEFAULT_GOAL := help
.PHONY: help demo serve test quick coverage check fmt lint build bench lock fuzz docs ptx guests gpu ci clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"TensorWasm needs CPython 3.11 or newer, and $(PYTHON) is {v.major}.{v.minor}: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV)

# What a user installs, and on top of it what a contributor installs.
$(VENV)/.user: pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) ..."
	@$(BIN)/python $(PIP) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing the development tools into $(VENV) ..."
	@$(BIN)/python $(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.user

$(VENV)/.server: pyproject.toml | $(BIN)/python
	@echo "installing the service into $(VENV) ..."
	@$(BIN)/python $(PIP) --editable '.[server]'
	@touch $@ $(VENV)/.user

$(VENV)/.gpu: $(VENV)/.dev
	@$(BIN)/python $(PIP) --editable '.[dev,cuda]'
	@touch $@

demo: $(VENV)/.user  ## an untrusted C program launches a CUDA kernel, on the GPU or without one
	@$(BIN)/tensor-wasm run examples/vector_add/vector_add.wasm --grant cuda --device auto --verbose

serve: $(VENV)/.server  ## the service, on this machine's port 8080; its first token is shown once
	@$(BIN)/tensor-wasm serve

test: $(VENV)/.dev  ## the whole suite, from nothing
	@$(BIN)/python -m pytest -n auto --dist worksteal -q

quick: $(VENV)/.dev  ## the tests of what changed and what depends on it, under a minute
	@$(BIN)/python tools/quick.py

coverage: $(VENV)/.dev  ## the lines that tests in this process run; fails below the floor in pyproject.toml
	@$(BIN)/python -m pytest -n auto --dist worksteal -q --cov --cov-report=term tests/unit tests/conformance

check: lint  ## lint, types, layers, workflows, generated files
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python tools/check_workflows.py
	@$(BIN)/python tools/generate_abi.py --check
	@$(BIN)/python tools/generate_docs.py --check
	@$(BIN)/python tools/generate_map.py --check

fmt: $(VENV)/.dev  ## format, and fix what can be fixed
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

lint: $(VENV)/.dev  ## ruff
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .

build: $(VENV)/.dev  ## the wheel, in dist/
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

bench: $(VENV)/.dev  ## the benchmarks that need no GPU
	@$(BIN)/tensor-wasm bench emulator

lock:  ## renew requirements-dev.lock (needs uv)
	@{ head -1 requirements-dev.lock; uv pip compile -q --universal --all-extras --python-version 3.11 --no-header --no-emit-index-url --no-annotate pyproject.toml; } > requirements-dev.lock.new
	@mv requirements-dev.lock.new requirements-dev.lock

fuzz: $(VENV)/.dev  ## damage inputs, SECONDS_EACH=60 for each target, and offload 10,000 programs (LOOP_PROGRAMS)
	@mkdir -p build; $(BIN)/python tests/fuzz/fuzz_loops.py --programs $(or $(LOOP_PROGRAMS),10000) --kept build/fuzz_loops.json
	@for target in $(filter-out %/fuzz_loops.py,$(wildcard tests/fuzz/fuzz_*.py)); do echo "== $$target"; $(BIN)/python $$target --seconds $(or $(SECONDS_EACH),60) || exit 1; done

docs: $(VENV)/.dev  ## regenerate the documents and interfaces made from code
	@$(BIN)/python tools/generate_abi.py
	@$(BIN)/python tools/generate_docs.py
	@$(BIN)/python tools/generate_map.py

ptx: $(VENV)/.dev  ## rebuild the example kernels (needs nvcc)
	@$(BIN)/python tools/build_kernels.py

guests: $(VENV)/.dev  ## rebuild the example guests
	@$(BIN)/python tools/build_guests.py

gpu: $(VENV)/.gpu  ## conformance and benchmarks on this machine's NVIDIA GPU; a skip is a failure
	@$(BIN)/python tools/gpu_suite.py

ci:  ## what continuous integration runs
	@bash .ci/run

clean:  ## remove what was built
	@rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
