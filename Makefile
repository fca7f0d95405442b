# `make run` sets up what a simulation needs and runs it; `make test` also sets up what tracing and the
# checks need (torch, megatron-core, pytest, ...) and runs all tests.  `make setup` does both halves of
# the setup.  Each half leaves a stamp in .venv and is skipped while its inputs are older than the stamp.

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
INPUTS := setup.cfg setup.py constraints.txt Makefile
AXE := 4.14.1
ARGS ?=

.PHONY: run test setup check browser versions docs clean
.DELETE_ON_ERROR:

run: $(VENV)/stamp-run
	@$(PY) scripts/run_sim.py $(ARGS)

test: setup
	@scripts/test

check: setup
	@scripts/check

# The Python interface as pages, from its docstrings.
docs: setup
	@$(PY) -m pdoc --docformat restructuredtext --output-directory build/docs simcore.apps.interface simcore.rules simcore.errors

# What tests of pages in a real browser need; where it cannot be had they are skipped, and this says why.
browser: setup
	@$(PIP) playwright || echo "no playwright: pages are not tried in a browser" >&2
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { apt-get update -q && apt-get install -qy --no-install-recommends chromium; } >/dev/null 2>&1 || \
	  echo "no Chromium: pages are not tried in a browser" >&2
	@test -f $(VENV)/axe-core/axe.min.js || \
	  { mkdir -p $(VENV)/axe-core && cd $(VENV)/axe-core && npm pack --silent axe-core@$(AXE) >/dev/null && \
	    tar xzf axe-core-$(AXE).tgz --strip-components 1 package/axe.min.js package/LICENSE; } 2>/dev/null || \
	  echo "no axe-core: accessibility of pages is not checked" >&2

# The package as users get it, on the oldest and newest of what it allows.
versions: setup
	@$(PY) scripts/check_versions.py

setup: $(VENV)/stamp-run $(VENV)/stamp-test
	@echo "ready: $(VENV)" >&2

$(PY):
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed (set PYTHON=...)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed, $(PYTHON) is older (set PYTHON=...)" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV)

# Building against the pinned setuptools instead of an isolated newest one keeps the setup reproducible.
$(VENV)/stamp-run: $(INPUTS) | $(PY)
	@echo "setting up the simulator in $(VENV)" >&2
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation --use-pep517 --editable .
	@$(PY) -m compileall -q simcore workloads hardware_profiles  # also where Python is told not to keep it
	@touch $@

# The CPU build of torch is a tenth of the size of the CUDA build and all that tracing needs, so it is
# taken where an index that pip is configured with (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS) has it.
$(VENV)/stamp-test: $(VENV)/stamp-run
	@echo "setting up tracing and tests in $(VENV)" >&2
	@$(PIP) "torch==$(TORCH)+cpu" 2>/dev/null || $(PIP) "torch==$(TORCH)"
	@$(PIP) --no-build-isolation --use-pep517 --editable '.[tracing,plots,calibrate,chakra,learned,test]'
	@$(PIP) --no-deps megatron-core
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
