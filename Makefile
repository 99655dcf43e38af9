# Everything is installed into $(VENV) on first use.
PYTHON ?= python3.11
VENV ?= .venv
PY = $(VENV)/bin/python

.PHONY: demo test test-slow lint install

# Trains on three Atari games for a few minutes, tests the agent, and reports.
demo: install
	$(PY) experiment.py --level_name=pong,boxing,breakout --use_popart --network=shallow \
	  --total_environment_frames=800000 --logdir=runs/demo
	$(PY) experiment.py --mode=test --test_num_episodes=4 --logdir=runs/demo
	$(PY) experiment.py --mode=report --runs=runs/demo --report_dir=runs/demo-report

test: install
	$(PY) -m pytest -n 2 --dist worksteal --durations=20

# What kills processes again and again, or takes minutes.
test-slow: install
	$(PY) -m pytest -n 2 --dist worksteal --durations=20 -m slow tests/slow

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --editable '.[test]'
	touch $@
