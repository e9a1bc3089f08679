# dada-augment. `make` lists the commands. They need Python 3.11+ and make, and set up the rest.
#
#   PYTHON=python3.12 make test     another interpreter
#   PIP_ARGS="..." make demo          more arguments for pip install
#   DADA_USE_CURRENT_PYTHON=1 make test
#                                   install nothing, use the packages that PYTHON already has

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?=

ifeq ($(DADA_USE_CURRENT_PYTHON),1)
PY := PYTHONPATH="$(CURDIR)/src" $(PYTHON)
READY :=
READY_BENCH :=
READY_DOCS :=
TIMEOUT :=
else
PY := $(VENV)/bin/python
READY := $(VENV)/.installed
READY_BENCH := $(VENV)/.installed-bench
READY_DOCS := $(VENV)/.installed-docs
TIMEOUT := --timeout=600
endif

# A tool that the current interpreter lacks is skipped there, and said so. In .venv all are present.
has = $(PY) -c "import importlib.util as u, sys; sys.exit(u.find_spec('$(1)') is None)"
check = if $(call has,$(1)); then $(PY) -m $(2); else echo "   $(1) is not installed for $(PYTHON): skipped"; fi

.PHONY: help setup demo demo-planted test test-all package fire lint bench docs clean distclean
.DEFAULT_GOAL := help

help:
	@echo "make demo       set up, then find a policy for drawn fruit, judge it and show it"
	@echo "make demo-planted   the same on data whose answer is known"
	@echo "make test       set up, then style, types and tests (minutes, on a CPU)"
	@echo "make test-all   the same with the slow tests, and the package"
	@echo "make package    build the package into dist/ and check it"
	@echo "make fire       ten minutes of hostile files, names, options and killed processes"
	@echo "make lint       style and types only"
	@echo "make bench      set up, then the benchmarks of this machine"
	@echo "make docs       set up, then build the documentation into site/"
	@echo "make setup      set up only: .venv with everything in it"
	@echo "make clean      remove caches and built packages"
	@echo "make distclean  remove .venv as well (runs/ is yours and stays)"

setup: $(READY)

$(VENV)/.created:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { \
	  echo "Python 3.11 or newer is needed, '$(PYTHON)' is not that; set PYTHON=/path/to/python3.11"; \
	  exit 1; }
	@echo "== Making a virtual environment in $(VENV) (seconds)"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv"; \
	  exit 1; }
	@touch $@

# Runs again when the list of dependencies changes.
$(VENV)/.installed: $(VENV)/.created pyproject.toml
	@echo "== Installing dada and its tools into $(VENV)"
	@echo "   (torch with CUDA is a download of about 5 GB: 2 to 4 minutes on a fast line, once)"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e ".[dev]"
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	@echo "== Installing the libraries that the benchmarks compare with (a minute)"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e ".[bench]"
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "== Installing what builds the documentation (seconds)"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e ".[docs]"
	@touch $@

demo: $(READY)
	@echo "== Running examples/demo.py"
	@$(PY) examples/demo.py

demo-planted: $(READY)
	@echo "== Running examples/demo.py --planted"
	@$(PY) examples/demo.py --planted

lint: $(READY)
	@echo "== Style (seconds)"
	@$(call check,ruff,ruff check .)
	@$(call check,ruff,ruff format --check .)
	@echo "== Types (up to a minute the first time)"
	@$(call check,mypy,mypy)

# Half of the time is these: they run beside the others, on a core of their own.
BESIDE := $(foreach name,planted planted_tasks stacked docs base_choice tasks benchmarks integrations,tests/test_$(name).py)

test: lint
	@echo "== Tests (minutes; make test-all adds the slow ones)"
ifeq ($(PYTEST_ARGS),)
	@log=$$(mktemp); \
	$(PY) -m pytest $(TIMEOUT) $(BESIDE) > $$log 2>&1 & beside=$$!; \
	$(PY) -m pytest $(TIMEOUT) $(BESIDE:%=--ignore=%); rest=$$?; \
	wait $$beside; beside=$$?; cat $$log; rm -f $$log; exit $$((rest + beside))
else
	@$(PY) -m pytest $(TIMEOUT) $(PYTEST_ARGS)
endif

test-all: lint
	@echo "== All tests, the slow ones too"
	@$(PY) -m pytest -m "" $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory package

package: $(READY)
	@echo "== The package (dist/)"
	@rm -rf dist
	@$(call check,build,build --no-isolation)
	@if [ -d dist ]; then $(call check,twine,twine check --strict dist/*); fi

# Other cases every day; what it finds is printed, and benchmarks/results stays as it is.
fire: $(READY)
	@echo "== Under fire (ten minutes; python -m tests.fire --help for more)"
	@OMP_NUM_THREADS=1 PYTHONPATH="$(CURDIR)/src" $(PY) -m tests.fire --minutes 0.9 --seed "$$(date +%j)"

bench: $(READY_BENCH)
	@echo "== Benchmarks of this machine (results go to benchmarks/results)"
	@$(PY) benchmarks/run.py

docs: $(READY_DOCS)
	@echo "== Documentation (open site/index.html)"
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

clean:
	rm -rf site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
