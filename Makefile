# Every target does its own set-up: a fresh clone needs only python3 and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DOCS   := $(VENV)/.docs
BENCH  := $(VENV)/.bench
# Not compiled: of what is installed, most is never imported, and compiling it takes forty seconds.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# Without compiled files every process that a test starts would compile torch again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check lint types tests format docs wheel bench bench-search clean fuzz soak

# The best of it in under two minutes on a quiet core: a picture of error against seconds beside tuned baselines, then the
# features of a network during training, an equation, and a model from a table, on one page.
DEMO := runs/demo
demo: export OMP_NUM_THREADS := 1
demo: $(READY)
	mkdir -p $(DEMO)
	$(BIN)/python -m benchmarks.first_figure --seconds 6 --out $(DEMO)/first.png
	$(BIN)/gnvpro run ellipse --work 150 --out $(DEMO) --overwrite
	$(BIN)/gnvpro run inverse-diffusion --method gnvpro --seconds 4 --out $(DEMO) --overwrite
	$(BIN)/python examples/make_table.py $(DEMO)/resonance.csv
	$(BIN)/gnvpro train $(DEMO)/resonance.csv --target amplitude --out $(DEMO)/resonance --overwrite
	$(BIN)/gnvpro report $(DEMO) --cover $(DEMO)/first.png

# Everything, in under ten minutes; `check` is for between two edits: no slow tests, one variant of each of the others.
test: lint types tests

check: lint types
	$(BIN)/pytest -n 2 --dist worksteal --quick

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(READY)
	$(BIN)/mypy

tests: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Random cases for so many seconds, from a seed of the clock's; every seed that fails is printed, and can be given again.
FUZZ_SECONDS ?= 600
fuzz: $(READY)
	$(BIN)/python tests/project/test_fuzz.py $(FUZZ_SECONDS) $(FUZZ_SEED)

# An hour of random problems, tables, files and faults; what was found goes to docs/lab/reliability.md.
SOAK_SECONDS ?= 3600
soak: $(READY)
	$(BIN)/python -m benchmarks.reliability --seconds $(SOAK_SECONDS) --seed $$(date +%s)

# The site, in site/. A broken link or a name that does not exist fails the build.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Wheel and source distribution, in dist/.
wheel: $(READY)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	ls -l dist

# The race against other trainers: tables and a plot in runs/race/. Interrupted, it goes on where it was.
bench: $(BENCH)
	$(BIN)/python -m benchmarks.race run

# The search for the peers' settings, benchmarks/race/settings.json; needed only when a grid or a problem changes.
bench-search: $(BENCH)
	$(BIN)/python -m benchmarks.race search

# torch is pinned in the constraints so that the small CPU build is taken where one is offered.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e ".[dev]"
	touch $(READY)

$(DOCS): $(READY)
	$(INSTALL) -e ".[docs]"
	touch $(DOCS)

# A torchvision that came along, or was there, and does not fit this torch breaks the peers' imports.
$(BENCH): $(READY)
	$(INSTALL) -e ".[bench]"
	$(BIN)/pip uninstall --quiet --yes torchvision
	touch $(BENCH)

clean:
	rm -rf $(VENV) site dist .mypy_cache .ruff_cache .pytest_cache
