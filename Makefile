# Everything from nothing: Python 3.11 or newer, pip and make are enough. `make help` lists what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
TESTS ?=
WORKERS ?= 2
START ?= 0
EXAMPLES ?= 10000

.DEFAULT_GOAL := help
.PHONY: help demo test fast-tests test-slow fuzz lint types format docs notebook package benchmark comparison experiments clean

help: ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(VENV)/.installed-demo ## install, then run the paper's four steps on scikit-learn's digits
	$(BIN)/pcn demo

# One thread for each worker: the tests' matrices are small, and threads that wait for each other are slower than one.
test fast-tests test-slow fuzz: export OMP_NUM_THREADS = 1

test: lint ## install, then lint, check types and run the tests
	@$(MAKE) --no-print-directory -j2 types fast-tests

fast-tests: $(VENV)/.installed-test
	$(BIN)/pytest -n $(WORKERS) -m "not slow" $(TESTS)

test-slow: $(VENV)/.installed-test ## run the tests that take long
	$(BIN)/pytest -n $(WORKERS) -m slow $(TESTS)

fuzz: $(VENV)/.installed-test ## run the checks on random models over 10,000 of them
	$(BIN)/python tests/fuzz.py --start $(START) --examples $(EXAMPLES) --workers $(WORKERS)

lint: $(VENV)/.installed-test ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test ## check types
	$(BIN)/mypy

format: $(VENV)/.installed-test ## format, and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-docs ## build the documentation into build/site; a warning or a broken link fails
	$(BIN)/python -m sphinx -q -W --keep-going -c docs . build/site
	@echo "open build/site/index.html"

notebook: $(VENV)/.installed-notebook ## run the notebook and save it with its outputs
	$(BIN)/python notebooks/run.py

package: $(VENV)/.installed-package ## build wheel and sdist, and try both in an empty environment
	rm -rf dist build/package
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/package
	build/package/bin/python -m pip install --disable-pip-version-check -c constraints.txt dist/*.whl
	build/package/bin/python tests/package/smoke.py README.md src/pcn
	build/package/bin/python -m pip install --disable-pip-version-check --no-deps --force-reinstall dist/*.tar.gz
	build/package/bin/python tests/package/smoke.py README.md src/pcn

benchmark: $(VENV)/.installed-test ## measure the analysis; results land in benchmarks/results
	$(BIN)/python benchmarks/analysis.py

comparison: $(VENV)/.installed-test ## bring the comparison's pages up to benchmarks/results
	$(BIN)/python benchmarks/peers_report.py --write

experiments: $(VENV)/.installed-test ## run what is missing of the paper's experiments, on a GPU (DATA=folder)
	$(BIN)/python experiments/run_all.py --data $(DATA)

clean: ## remove the environment, caches and build outputs
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: a second call installs nothing.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; \
	  sys.exit(f"pcn needs Python 3.11 or newer, $(PYTHON) is {v}: try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed-%: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP_INSTALL) -e '.[$*]'
	@touch $@

.PRECIOUS: $(VENV)/.created $(VENV)/.installed-%
