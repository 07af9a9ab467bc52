PYTHON ?= python3
BIN := .venv/bin
PORT ?= 8000
IN_BROWSER := tests/test_browser.py tests/test_movable.py tests/test_translator_page.py
CHECKED := nbs tests tools book benchmarks

.DEFAULT_GOAL := help
.PHONY: help env book pdf epub test run sync serve lint types unit nbval browser bench links clean

help:            ## show this list
	@echo "make VERB, where VERB is one of:"
	@sed -n 's/^\([a-z]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 12

book: env        ## build the book: open _build/html/index.html
	@$(BIN)/jupyter-book build . -W -n --keep-going --quiet
	@echo "The book is in _build/html/index.html"

pdf: book        ## the whole book as a PDF (needs Chromium)
	@$(BIN)/python tools/volume pdf

epub: book       ## the whole book as an EPUB
	@$(BIN)/python tools/volume epub

test: env        ## run every check: export, lint, types, book, unit tests, notebooks, browser
	@$(MAKE) --no-print-directory lint types book unit nbval browser

run: env         ## execute all notebooks, store their outputs, export the package
	@$(BIN)/python tools/nbs.py run

sync: env        ## tidy the notebooks and export the package
	@$(BIN)/python tools/nbs.py sync

serve: book      ## build the book and serve it on http://127.0.0.1:8000 (PORT=...)
	@echo "http://127.0.0.1:$(PORT)/  (Ctrl-C ends it)"
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

lint: env        ## notebooks and package in step, ruff
	@$(BIN)/python tools/nbs.py check
	@$(BIN)/ruff check $(CHECKED)
	@$(BIN)/ruff check -q --select F821 transformer_lit || { echo "a cell that is exported uses a name from one that is not"; exit 1; }
	@$(BIN)/ruff format --check -q $(CHECKED) || { echo "run: .venv/bin/ruff format $(CHECKED)"; exit 1; }

types: env       ## mypy on the package
	@$(BIN)/mypy transformer_lit

unit: env        ## unit and property tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile $(IN_BROWSER:%=--ignore %)

nbval: env       ## run all notebooks and compare every output with the stored one
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -p no:cacheprovider -n 2 --dist loadfile --nbval --nbval-current-env --nbval-sanitize-with nbs/sanitize.cfg nbs/[0-9]*.ipynb nbs/checks/[0-9]*.ipynb

browser: env     ## open the built book in headless Chromium
	@$(BIN)/python -m pytest -q -rs -n 2 --dist worksteal $(IN_BROWSER)

bench: .venv/bench ## measure the package beside its peers (half an hour; nothing else may run)
	@env -u OMP_NUM_THREADS -u OMP_WAIT_POLICY $(BIN)/python -m benchmarks $(WORKS)

.venv/bench: .venv/stamp
	@$(BIN)/pip install -q --disable-pip-version-check -c requirements.lock -e ".[dev,bench]"
	@# labml-nn asks for much that is not used here, and works with this labml only
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps labml-nn==0.5.1 labml==0.4.168
	@touch $@

links: env       ## check that links to other sites are alive (needs the network)
	@$(BIN)/jupyter-book build . --builder linkcheck

clean:           ## remove what was built; the environment stays
	@rm -rf _build book/_build .mypy_cache .ruff_cache .pytest_cache build *.egg-info
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

# The environment is set up once, and again when what it is made from changes.
env: .venv/stamp
.venv/stamp: pyproject.toml requirements.lock
	@test -w . || { echo "make: cannot write to $$PWD; clone into a folder that you own"; exit 1; }
	@command -v $(PYTHON) >/dev/null || { echo "make: no '$(PYTHON)' found; install Python 3.11 or newer, or say make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old; Python 3.11 or newer is needed: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: this Python lacks venv; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@echo "Setting up .venv (a minute or two, 2 GB) ..."
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/pip install -q --disable-pip-version-check -c requirements.lock -e ".[dev]"
	@touch $@
