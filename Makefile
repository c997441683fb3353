# Every developer verb. `make serve` and `make test` work in a fresh clone with Python >= 3.10 and nothing else.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SERVE_FLAGS ?=
BENCH_FLAGS ?=
TEST_FLAGS ?=

# Without an NVIDIA GPU torch is pinned, so that its newest CUDA build is not fetched for nothing.
CONSTRAINTS := $(if $(shell command -v nvidia-smi 2>/dev/null),,-c constraints-cpu.txt)

.PHONY: help serve install install-dev test test-random test-parallel lint format types bench bench-step bench-sampling \
  bench-grammar bench-http bench-drafters bench-tools bench-parallel docs clean

help:
	@echo "make serve          install, fetch the default model, serve it on 127.0.0.1:30000 (SERVE_FLAGS='--port 8000')"
	@echo "make test           install what tests need and run them (TEST_FLAGS='-k chat')"
	@echo "make test-random    new random examples for the tests that have them, and more of them; run it by hand"
	@echo "make test-parallel  of the tests, those of many ranks"
	@echo "make install        install Scansion into $(VENV) (PYTHON=python3.12 chooses the interpreter)"
	@echo "make lint           check style and the layering of the packages"
	@echo "make types          check types"
	@echo "make format         format the code"
	@echo "make bench          measure a server (BENCH_FLAGS='--base-url http://127.0.0.1:30000')"
	@echo "make bench-step     milliseconds per part of a step"
	@echo "make bench-sampling milliseconds per sampling feature"
	@echo "make bench-grammar  compiling grammars and filling masks (with CORPORA=FOLDER also what schemas of others get)"
	@echo "make bench-drafters whether drafts leave answers as they are, and what they bring"
	@echo "make bench-tools    reading calls, compiling tools, and whether a running server's are valid (BENCH_FLAGS='--base-url ...')"
	@echo "make bench-http     CPU time of the HTTP process per streamed token (BENCH_FLAGS go to any of these)"
	@echo "make bench-parallel what many ranks and copies cost and bring"
	@echo "make docs           write the generated parts of docs/"

serve: install
	@exec $(BIN)/scansion serve $(SERVE_FLAGS)

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or newer is needed, and '$(PYTHON)' is not: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: pyproject.toml constraints-cpu.txt | $(BIN)/python
	$(BIN)/python -m pip install $(CONSTRAINTS) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints-cpu.txt | $(BIN)/python
	$(BIN)/python -m pip install $(CONSTRAINTS) -e '.[test,lint,bench]'
	@touch $@ $(VENV)/.installed

test: install-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(TEST_FLAGS)

test-random: install-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -m hypothesis --hypothesis-profile random --timeout 1200 $(TEST_FLAGS)

test-parallel: install-dev
	$(BIN)/python -m pytest tests/ranks tests/end_to_end/test_parallel.py $(TEST_FLAGS)

lint: install-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

format: install-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: install-dev
	$(BIN)/mypy

bench: install-dev
	$(BIN)/scansion bench serve $(BENCH_FLAGS)

bench-step: install-dev
	$(BIN)/scansion bench step $(BENCH_FLAGS)

bench-sampling: install-dev
	$(BIN)/python -m bench.sampling $(BENCH_FLAGS)

bench-grammar: install-dev
	$(BIN)/python -m bench.grammar $(BENCH_FLAGS)
	$(BIN)/python -m bench.grammar_serving
	$(BIN)/python -m bench.grammar_memory
ifdef CORPORA
	$(BIN)/python -m bench.grammar_corpora
endif

bench-drafters: install-dev
	$(BIN)/python -m bench.drafters $(BENCH_FLAGS)

bench-http: install-dev
	$(BIN)/python -m bench.http_overhead $(BENCH_FLAGS)

bench-tools: install-dev
	$(BIN)/python -m bench.tools.parsing
	$(BIN)/python -m bench.tools.compile
	$(BIN)/python -m bench.tools.validity $(BENCH_FLAGS)

bench-parallel: install-dev
	$(BIN)/python -m bench.parallel $(BENCH_FLAGS)

docs: install-dev
	$(BIN)/python -m server.cli.docs docs/configuration.md

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
