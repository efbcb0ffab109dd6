# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
OLDEST := .venv-oldest

.PHONY: setup demo test test-oldest lint types bench bench-capture architectures hub-faults clean

setup: $(VENV)/.dev

demo: $(VENV)/.base
	$(BIN)/attention-plasticity demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 $(ARGS)

test-oldest: $(OLDEST)/.dev
	$(OLDEST)/bin/python -m pytest -n 2 tests/qk_sniffer $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.base
	$(BIN)/python -m benchmarks.analysis $(ARGS)

bench-capture: $(VENV)/.dev
	$(BIN)/python -m benchmarks.capture $(ARGS)

architectures: $(VENV)/.dev
	$(BIN)/python tests/architecture_table.py

hub-faults: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python tests/hub_fault_table.py

clean:
	rm -rf $(VENV) $(OLDEST) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) install -c constraints.txt -e '.[dev]'
	touch $@

# the oldest transformers we promise, with what it asks for beside the versions of constraints.txt
$(OLDEST)/.dev: pyproject.toml constraints.txt
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	grep -v -E '^(transformers|huggingface_hub|tokenizers)==' constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip --quiet --disable-pip-version-check install \
		-c $(OLDEST)/constraints.txt -e '.[dev]' transformers==5.1.0
	touch $@
