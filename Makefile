# Two commands for a new user: `make run` and `make test`. Both set up .venv by themselves, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# -n 2: two test processes of one thread each
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

.PHONY: run test lint types unit test-flower test-chaos test-report screenshots tables curves test-sanitized fuzz clean

run: $(READY)
	@$(BIN)/feddag compare --fresh --runs runs

test: lint types unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

unit: $(READY)
	$(PYTEST)

# Installs only when the pins, the project's metadata or its native sources change.
$(READY): pyproject.toml constraints.txt setup.py $(wildcard feddag/native/src/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "feddag needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing what is needed into $(VENV) (once)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# What extras of pyproject.toml ask for, without compiling feddag again.
define install_extras
$(BIN)/python -c 'import sys, tomllib; \
	extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	print(*(need for name in sys.argv[1:] for need in extras[name]), sep="\n")' $(1) | \
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --requirement /dev/stdin
endef

# Real Flower programs on this machine (minutes; installs Flower into .venv, once, and unpacks nginx there if it can).
test-flower: $(VENV)/.flower
	FEDDAG_TEST_FLOWER=1 FEDDAG_NGINX=$$(ls $(CURDIR)/$(VENV)/nginx/usr/sbin/nginx 2>/dev/null) OMP_NUM_THREADS=1 $(BIN)/pytest tests/engines/test_flower_processes.py tests/engines/test_flower_guide.py

$(VENV)/.flower: $(READY)
	@$(call install_extras,flower-simulation)
	@command -v nginx >/dev/null || { cd $(VENV) && { [ "$$(id -u)" != 0 ] || apt-get update -qq; } && \
		apt-get download -qq nginx && dpkg -x nginx_*.deb nginx && rm nginx_*.deb; } || \
		echo "nginx is not installed and could not be downloaded: its part of the guide is skipped"
	@touch $@

# Real Flower programs that are killed, stopped, slowed, lied to and filled up (about an hour; says what it does to whom).
test-chaos: $(VENV)/.flower
	FEDDAG_TEST_CHAOS=1 OMP_NUM_THREADS=1 $(BIN)/pytest -s -rs tests/chaos

# The pages in a real Chromium (a minute; installs Chromium where apt-get may, and Playwright into .venv, once).
test-report: $(VENV)/.browser
	FEDDAG_TEST_BROWSER=1 OMP_NUM_THREADS=1 $(BIN)/pytest -rs tests/report/test_browser.py tests/report/test_loggers.py

$(VENV)/.browser: $(READY)
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && \
		apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || \
		echo "there is no Chromium, and it cannot be installed here: its tests will be skipped"
	@$(call install_extras,browser loggers)
	@touch $@

# The pictures of docs/report.md, made anew.
screenshots: $(VENV)/.browser
	$(BIN)/python docs/screenshots.py

# The tables of docs/results.md and docs/fidelity.md, from the kept results (seconds).
tables: $(READY)
	$(BIN)/python docs/tables.py

# The curves of docs/results.md, from the kept results (seconds; needs Chromium as above).
curves: $(VENV)/.browser
	$(BIN)/python docs/curves.py

# Damaged and hostile input of every kind, each read or refused in one sentence (five minutes; docs/security.md).
FUZZ_MINUTES ?= 5
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz 100000 --minutes $(FUZZ_MINUTES)

# The native trainer's tests under the address and undefined-behaviour sanitizers (minutes; needs gcc's libasan).
test-sanitized: $(READY)
	PYTHON=$(BIN)/python feddag/native/sanitize.sh -q

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
