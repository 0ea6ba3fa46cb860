# Every target sets up the environment it needs: an empty clone and `make search` are enough.

VENV := .venv
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed
RUN := $(VENV)/bin/python -m
SEQ ?= 1024
ARGS ?=
WORKERS := $(shell expr $$(nproc) + 1)  # one more than cores, since many tests wait for a child's answer or time-out

# The user's own python3 first: it is the one that may hold a torch built for the machine's GPU.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null \
	&& command -v $$name && break; done)

.DEFAULT_GOAL := help
.PHONY: help install search test test-slow test-gpu lint docs fitted recorded dist clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## create .venv and install everything into it; PYTHON=... names the interpreter

search: $(STAMP)  ## tune flash attention; SEQ=512,2048 names the lengths, ARGS="..." adds options
	@$(VENV)/bin/autotune search --seq $(SEQ) $(ARGS)

# Hundreds of tests start a Python of their own, and each would compile all modules again: a fifth of the time.
test test-slow: export PYTHONDONTWRITEBYTECODE =
# A worker per core is parallel enough: torch's threads, a team in each process, wait for each other's cores.
test test-slow: export OMP_NUM_THREADS = 1

test: lint  ## check style and types, then run every test that is quick and needs no GPU
	@echo "== pytest"
	@$(RUN) pytest -n $(WORKERS) -m "not gpu and not slow" $(ARGS)

# pytest exits with 5 where no test is marked slow, which is no failure.
test-slow: $(STAMP)  ## run the tests that take minutes
	@$(RUN) pytest -n $(WORKERS) --dist loadfile -m "slow and not gpu" $(ARGS) || test $$? -eq 5

test-gpu: $(STAMP)  ## run the tests that need a GPU, on this machine's
	@$(RUN) pytest -m gpu $(ARGS)

lint: $(STAMP)  ## check style with ruff and types with mypy
	@echo "== ruff check" && $(RUN) ruff check --output-format concise .
	@echo "== ruff format" && $(RUN) ruff format --check .
	@echo "== mypy" && $(RUN) mypy

# NO_MKDOCS_2_WARNING: the theme announces another project's future at every build, which is no warning about this site.
docs: $(DOCS_STAMP)  ## build the documentation into site/, where a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --quiet --strict
	@echo "open site/index.html"

# After new recordings below results/, before `make recorded`.
fitted: $(STAMP)  ## fit the defaults of Hopper to results/ anew; minutes
	@$(RUN) benchmarks.fit_decode
	@$(RUN) benchmarks.fit_dense

# After new recordings below results/, or a changed default of a space: without them many tests say what is old.
recorded: $(STAMP)  ## compute what follows from results/ anew: portfolios, binaries of other Tritons, pages, goldens
	@$(RUN) benchmarks.portfolios >/dev/null
	@$(RUN) benchmarks.toolchain_drift --prune >/dev/null
	@$(RUN) benchmarks.documentation
	@AUTOTUNE_GOLDEN=write $(RUN) pytest -q -n $(WORKERS) -m "not gpu" -k "golden or what_a_page_shows" tests
	@$(RUN) benchmarks.expected_regret || true  # it fails below its targets, which are of the recordings
	@git diff --stat

# A stale build/ would put deleted modules into the wheel.
dist: $(STAMP)  ## build the wheel into dist/
	@rm -rf build dist
	@$(RUN) pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

clean:  ## remove caches and build outputs; `rm -rf .venv` removes the environment
	@rm -rf build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# What the site needs and no test of `make test`: installed for `make docs` alone.
$(DOCS_STAMP): $(STAMP)
	@$(RUN) pip install -qq --disable-pip-version-check --no-build-isolation "numpy<2.4" -e ".[docs]"
	@touch $@

# Without a GPU: exact versions, so that searches and tests compile what the shipped sweeps were compiled with. A bare
# `torch` takes the newest CUDA build there, gigabytes that nothing uses.
# With a GPU: the torch and triton that the machine's python has, which are built for it and for each other.
# Triton 3.6's interpreter needs NumPy < 2.4 everywhere. An environment sees the packages of its base, so that is asked.
# The link shows the editable package to mypy and editors, which do not run the import hook that pip installs for it.
# cuDNN's frontend without what it asks for: it builds and checks graphs alone, and its extras are hundreds of megabytes.
$(STAMP): pyproject.toml Makefile
	@test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.14 found; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@set -e; \
	base=$$($(PYTHON) -c 'import sys; print(sys._base_executable)'); \
	site=; torch="torch==2.13.0 triton==3.6.0"; \
	if { nvidia-smi -L || rocminfo; } >/dev/null 2>&1; then \
		if $$base -c 'import torch, triton' 2>/dev/null; then site=--system-site-packages; torch=; \
		else torch="torch>=2.11"; fi; \
	fi; \
	test -x $(VENV)/bin/pip || { echo "creating $(VENV) with $$base"; $$base -m venv --clear $$site $(VENV); }; \
	echo "installing attention-autotune and its tools into $(VENV); minutes the first time"; \
	$(RUN) pip install -qq --disable-pip-version-check "setuptools>=77" wheel; \
	$(RUN) pip install -qq --disable-pip-version-check --no-build-isolation \
		$$torch "numpy<2.4" nvidia-ml-py -e ".[dev]"; \
	$(RUN) pip install -qq --disable-pip-version-check --no-deps "nvidia-cudnn-frontend>=1.30,<2"; \
	ln -sfn "$(CURDIR)/autotune" "$$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"; \
	touch $@
