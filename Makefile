# Both main targets do all of their own set-up in .venv, from a fresh clone and with nothing prepared.

PYTHON ?= python3
MODEL ?=
ARGS ?=
WORKERS ?= 2
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: serve test test-slow lint types tests coverage clients conformance browser load format clean
.PHONY: histories-long sessions-long

serve: .venv/ready-base
	$(BIN)/ninfer-serve $(MODEL) $(ARGS)

test: lint types tests coverage

lint: .venv/ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready-test
	$(BIN)/mypy

tests: .venv/ready-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Full branch coverage of the pure parts and of the actors' runtime; storms are left to `tests`, they take minutes here.
coverage: .venv/ready-test
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -m "not gpu and not slow and not storm" tests/scheduler tests/text tests/actors tests/test_replay.py
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --fail-under=100 --include='ninfer/scheduler/*,ninfer/text/*,*/actors/runtime/*'

# Minutes to hours: wider sweeps of the same properties.
test-slow: .venv/ready-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow

# Real agent programs (Node 20 with npm), each through a task against the scripted engine; renews tests/clients/recorded.
clients: .venv/ready-test
	$(BIN)/python -m tests.clients.run var/clients $(ARGS)

# A quarter of an hour of requests that nobody wrote, in the quiet: by the OpenAPI document, and from bodies that work.
conformance: .venv/ready-test
	NINFER_CONFORMANCE_S=300 NINFER_FUZZ_S=40 NINFER_FUZZ_SEEDS=15 nice -n 19 $(BIN)/python -m pytest tests/conformance

# The dashboard in headless Chromium (the system's packages chromium and chromium-driver).
browser: .venv/ready-test
	$(BIN)/python -m pytest -m browser tests/browser

# 500 clients of several kinds on 8 lanes for ten minutes, and the processor time of a streamed token.
load: .venv/ready-base
	$(BIN)/ninfer-bench load $(ARGS)

# About five hours of one core: 50,000 histories of sessions against a cold server, on the embedded model.
histories-long: .venv/ready-base
	nice -n 19 $(BIN)/python -m tests.sessions.long --processes $(WORKERS) $(ARGS)

# About five minutes of one core: two sessions of 300 turns, with guesses and without.
sessions-long: .venv/ready-test
	nice -n 19 $(BIN)/python -m pytest -m slow tests/sessions/test_long_sessions.py

format: .venv/ready-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/python:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "NInfer needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/ready-base: .venv/python requirements/common.txt requirements/base.txt pyproject.toml
	$(PIP) install -r requirements/base.txt
	$(PIP) install --no-deps --editable .
	touch $@

.venv/ready-test: .venv/ready-base requirements/test.txt
	$(PIP) install -r requirements/test.txt
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .coverage*
