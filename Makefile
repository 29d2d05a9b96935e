# Everything runs in a virtual environment of its own, made on first use: only Python 3.11+ and make are needed.  It has
# what ksim needs to run; targets that test, lint or measure add the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTABLE := $(VENV)/.ready-test
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: run test test-fast explore lint browser hooks bench pages docs dist notebooks profiles accuracy energy clean

run: $(READY)
	$(BIN)/ksim run scenarios/quickstart.toml -o runs/quickstart --force

# Two processes, each test file in one of them: files share what is slow to make.  They keep bytecode, whatever the shell
# says: processes that tests start would compile all of ksim again.
test: $(TESTABLE)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadscope

# What is not slow, for all day; tests/slow.py lists what is.
test-fast: $(TESTABLE)
	$(BIN)/python -m pytest -n 2 --dist loadscope -m "not slow and not explore"

# What the suite tries the same each time, with other seeds and 12 times the examples, and random scenarios: at most 20
# minutes on two cores.  TIMES=4 tries four times as much; SEED says which seeds, those of the scenarios from that on.
TIMES ?= 1
SEED ?= $(shell date +%s)

explore: $(TESTABLE)
	KSIM_EXPLORE=$(TIMES) $(BIN)/python -m pytest -n 2 --dist worksteal -m "hypothesis or explore" --hypothesis-seed=$(SEED)

lint: $(TESTABLE)
	$(BIN)/ruff check .
	$(BIN)/mypy

# What tests of pages need beside Chromium; without either they are skipped.
browser: $(TESTABLE)
	$(PIP) -e '.[browser]'

# `make lint` before each commit.
hooks: $(TESTABLE)
	$(PIP) -e '.[dev]'
	$(BIN)/pre-commit install

bench: $(TESTABLE)
	$(BIN)/python -m benchmarks

# The profiles that ship, from the folders of public tables and of our own sweep; takes some minutes.
profiles: $(TESTABLE)
	$(BIN)/python -m benchmarks.research.shipped $(TABLES) $(SWEEP)

# docs/scenario.md and the JSON Schema of scenarios, from the documentation of the keys in the code, the picture of the
# layers, and docs/gallery.md, from the comments of the scenarios that ship.
pages: $(TESTABLE)
	$(BIN)/python -m benchmarks.reference
	$(BIN)/python -m benchmarks.layers
	$(BIN)/python -m benchmarks.gallery

# The manual, in site/.  A link that leads nowhere, or a page that is not in its navigation, is an error.
docs: $(READY)
	$(PIP) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The wheel and the source distribution, in dist/.
dist: $(READY)
	$(PIP) -e '.[release]'
	rm -rf dist build *.egg-info
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

# The notebooks' outputs.
notebooks: $(TESTABLE)
	$(BIN)/python -m benchmarks.notebooks

# The tables of whole runs in docs/evidence/accuracy.md, from a folder of recorded runs and the table of public ones.
accuracy: $(TESTABLE)
	$(BIN)/python -m benchmarks.accuracy $(RUNS) $(SILICON) $(LIMIT)

# Those of docs/evidence/energy-accuracy.md, from the same folder and the public table of kernels with the power of boards.
energy: $(TESTABLE)
	$(BIN)/python -m benchmarks.energy $(RUNS) $(BOARDS)

$(TESTABLE): EXTRAS := [test]

$(READY) $(TESTABLE): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ksim needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.$(EXTRAS)'
	@touch $(READY) $@

clean:
	rm -rf $(VENV) runs site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
