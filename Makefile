# Everything is installed into $(VENV) on first use, which the first of these Pythons makes.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13; do \
  $$python -c 'import ensurepip, venv' 2> /dev/null && echo $$python && break; done)
VENV ?= .venv
PY = $(VENV)/bin/python

.PHONY: demo test test-slow docs lint lock install

# Trains on a game of Atari, then IMPALA and PopArt-IMPALA on five tasks whose rewards differ by a
# factor of 10,000, and reports on both, in some minutes.
demo: install
	$(PY) experiment.py --flagfile=configs/small/single-game-popart.flags --level_name=krull \
	  --total_environment_frames=400000 --logdir=runs/demo/krull
	$(PY) experiment.py --mode=test --test_num_episodes=10 --logdir=runs/demo/krull
	$(PY) experiment.py --mode=report --runs=runs/demo/krull --report_dir=runs/demo/krull-report
	$(PY) tools/run_experiment.py --logdir=runs/demo --report_dir=runs/demo/report \
	  --test_num_episodes=50 configs/demo/demo-*.flags
	@echo "The Atari agent's own report is runs/demo/krull-report/report.html; 0 is published random play."
	@echo "Open runs/demo/report/report.html in a browser: the first figure, scores against frames, shows what PopArt does."

test: install
	$(PY) -m pytest -n 2 --dist worksteal --durations=20

# These tests kill processes again and again, take minutes, or need DmLab's real engine.
test-slow: install
	$(PY) -m pytest -n 2 --dist worksteal --durations=20 -m slow

docs: install
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet --site-dir=build/site

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) -m pytest --quiet tests/text

# Finds the newest versions of all packages that pyproject.toml allows and writes them down.
lock: install
	$(PY) -m pip install --quiet uv
	for version in 3.11 3.12 3.13; do \
	  $(LOCK) --python-version=$$version --extra=test \
	    --output-file=requirements/python$$version.txt || exit; \
	done
	$(LOCK) --python-version=3.13 --constraints=requirements/python3.13.txt \
	  --output-file=requirements/image.txt
	$(LOCK) --python-version=3.13 --constraints=requirements/python3.13.txt --extra=cuda \
	  --output-file=requirements/image-cuda.txt

LOCK = $(PY) -m uv pip compile --quiet --upgrade --generate-hashes --no-annotate \
  --python-platform=linux --custom-compile-command='make lock' pyproject.toml

# The locked packages of a Python.
REQUIREMENTS = requirements/python$$($(1) -c \
  'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null).txt

install: $(VENV)/installed
	@test "$(origin PYTHON)" != "command line" || \
	  echo "$(VENV) has $$($(PY) -V); to change that: rm -r $(VENV)" >&2

$(VENV)/installed: pyproject.toml $(wildcard requirements/*.txt)
	@test -n "$(PYTHON)" || \
	  { echo "No Python 3.11, 3.12 or 3.13 here that makes environments; try PYTHON=..." >&2; exit 1; }
	@test -e $(call REQUIREMENTS,$(PYTHON)) || \
	  { echo "PYTHON=$(PYTHON) is no Python 3.11, 3.12 or 3.13; give another or none" >&2; exit 1; }
	@test ! -L $(PY) -a ! -e $(PY) -o -e $(call REQUIREMENTS,$(PY)) || \
	  { echo "$(VENV) has no Python 3.11, 3.12 or 3.13; remove it and repeat: rm -r $(VENV)" >&2; exit 1; }
	@test "$(origin PYTHON)" != "command line" -o ! -e $(PY) -o \
	  $(call REQUIREMENTS,$(PYTHON)) = $(call REQUIREMENTS,$(PY)) || \
	  { echo "$(VENV) has another Python than $(PYTHON); remove it and repeat: rm -r $(VENV)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --no-deps --require-hashes --requirement $(call REQUIREMENTS,$(PY))
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@
