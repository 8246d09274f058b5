# Every target sets up .venv first, so any of them works on a fresh clone. `make help` lists them.
#
# make needs nothing but python3 (3.11 or newer). PYTHON=python3.12 picks another one, VENV=path another place
# for the environment, and NO_SETUP=1 uses VENV as it is.

PYTHON    ?= python3
VENV      ?= .venv
NO_SETUP  ?=

TASK      ?=
PROFILE   ?=
NORM      ?=
SEEDS     ?=
BATCH     ?=
JOBS      ?=
LAUNCHER  ?=
GPUS      ?=
LAUNCH    ?=
LOGGER    ?=
DEVICE    ?=
FAIL_FAST ?=
TEXT      ?=
BIAS      ?=
QUERY     ?=

OPTIONS := TASK PROFILE NORM SEEDS BATCH JOBS LAUNCHER GPUS LAUNCH LOGGER DEVICE FAIL_FAST TEXT BIAS QUERY
override TEXT := $(value TEXT)
override QUERY := $(value QUERY)
override LAUNCH := $(value LAUNCH)
export $(OPTIONS)

# SEED=0 for SEEDS=0 would otherwise be ignored without a word. TEXT, QUERY and LAUNCH may hold anything, so they are not
# looked into.
SPACE   := $(subst ,, )
DOLLAR  := $$
written  = $(1)=$(subst $(SPACE),\$(SPACE),$(subst $(DOLLAR),$(DOLLAR)$(DOLLAR),$($(1))))
without  = $(if $($(1)),$(subst $(call written,$(1)),,$(2)),$(2))
GIVEN   := $(foreach word,$(call without,LAUNCH,$(call without,QUERY,$(call without,TEXT,$(MAKEOVERRIDES)))),$(if $(findstring =,$(word)),$(firstword $(subst =, ,$(word)))))
UNKNOWN := $(filter-out $(OPTIONS) PYTHON VENV NO_SETUP PYTEST,$(GIVEN))
ifneq ($(filter LN_%,$(UNKNOWN)),)
$(error $(filter LN_%,$(UNKNOWN)) belongs before make, as in: $(firstword $(filter LN_%,$(UNKNOWN)))=... make $(firstword $(MAKECMDGOALS)))
endif
ifneq ($(UNKNOWN),)
$(error unknown variable $(UNKNOWN); choose from: $(OPTIONS) PYTHON VENV NO_SETUP PYTEST)
endif

PY    := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# What only LAUNCHER=ray needs.
RAY   := $(VENV)/.installed-ray
# The checks of the variables need no package, so they run before anything is installed.
BOOT   = $(if $(wildcard $(PY)),$(PY),$(PYTHON))
# TASK="$$TASK" and so on: the shell reads the exported variable, so no value can break out of its quotes. What is
# empty counts as not given; scripts/options.py has the defaults.
ARGS  := $(foreach name,$(OPTIONS),$(name)="$$$(name)")

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup data reproduce sweep figures tables compare report status estimate bench demo sample check test
.PHONY: lint clean
.PHONY: python again

help: ## list the targets and variables
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  Variables: TASK PROFILE=small NORM SEEDS BATCH JOBS=auto LOGGER=local DEVICE=auto FAIL_FAST=0 TEXT BIAS=1 QUERY"
	@echo "             LAUNCHER=joblib (or slurm, ray) GPUS LAUNCH"
	@echo "  Example:   make reproduce TASK=draw NORM=none,ln SEEDS=0,1 JOBS=2"

python:
	@command -v "$(BOOT)" >/dev/null || { echo "error: $(BOOT) not found; install Python 3.11 or newer, or give PYTHON=path" >&2; exit 2; }
	@"$(BOOT)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(BOOT) is $$("$(BOOT)" -V 2>&1), this needs Python 3.11 or newer; give PYTHON=path" >&2; exit 2; }

check-%: python
	@"$(BOOT)" -m scripts.options $* $(ARGS)

setup: python $(if $(NO_SETUP),,$(STAMP) $(if $(filter ray,$(LAUNCHER)),$(RAY))) ## build .venv from the pinned requirements

# The stamp comes last and goes first: an install that failed or was stopped is taken up again, and so is one whose
# python is gone (an upgraded system).
$(STAMP): requirements.txt $(if $(wildcard $(PY)),,again)
	@rm -f "$@"
	@echo "setup: installing the pinned requirements into $(VENV) (once; PyTorch is large, this takes minutes)"
	@"$(PYTHON)" -m venv "$(VENV)" || { echo "error: could not make $(VENV); on Debian and Ubuntu install python3-venv" >&2; exit 2; }
	@"$(PY)" -m pip install -q --disable-pip-version-check -r requirements.txt || { \
	  echo "error: installing requirements.txt into $(VENV) failed; see above, then run make setup again" >&2; exit 2; }
	@touch "$@"

# Without dependencies: all of them are pinned, there or in requirements.txt (requirements-ray.txt says why).
$(RAY): requirements-ray.txt $(STAMP)
	@echo "setup: installing Ray into $(VENV) (once)"
	@"$(PY)" -m pip install -q --disable-pip-version-check --no-deps -r requirements-ray.txt || { \
	  echo "error: installing requirements-ray.txt into $(VENV) failed; see above, then run make setup LAUNCHER=ray again" >&2; exit 2; }
	@touch "$@"

again:

data: check-data setup ## fetch or check the data of TASK, and say where each file came from
	@"$(PY)" -m scripts.get_data "$$TASK"

reproduce: check-reproduce setup ## data, training, figures and comparison of TASK, as far as not done yet
	@"$(PY)" -m scripts.reproduce $(ARGS)

sweep: check-sweep setup ## train the cells NORM x BATCH x SEEDS of TASK, JOBS at a time
	@"$(PY)" -m scripts.sweep $(ARGS)

figures: check-figures setup ## draw the figures from the runs there are
	@"$(PY)" -m scripts.figures $(ARGS)

tables: check-tables setup ## write the published tables from the runs there are
	@"$(PY)" -m scripts.tables $(ARGS)

compare: check-compare setup ## compare the runs there are with the paper
	@"$(PY)" -m scripts.compare $(ARGS)

report: check-report setup ## write results/report.html and .md: figures, tables, numbers, verdicts of all tasks
	@"$(PY)" -m scripts.report $(ARGS)

status: check-status setup ## list the runs: state, progress, best value
	@"$(PY)" -m scripts.status $(ARGS)

estimate: check-estimate setup ## measure a few steps: hours and peak memory of each cell of TASK at PROFILE
	@"$(PY)" -m scripts.estimate $(ARGS)

bench: check-bench setup ## time one training step per norm of TASK at paper sizes, beside its bare matrix products
	@"$(PY)" -m scripts.bench $(ARGS)

demo: check-demo setup ## ask a trained model of TASK something: QUERY="a sentence"
	@"$(PY)" -m scripts.demo $(ARGS)

sample: check-sample setup ## write TEXT with a trained model of TASK=handwriting, BIAS=1 neatly
	@"$(PY)" -m scripts.sample $(ARGS)

check: check-check setup ## every task with every norm at PROFILE=smoke, from data to comparison, in minutes
	@"$(PY)" -m scripts.check $(ARGS)

test: setup ## run the tests (PYTEST="-k name" to choose)
	@OMP_NUM_THREADS=1 "$(PY)" -m pytest -n 2 $(PYTEST)

lint: setup ## ruff and mypy
	@"$(PY)" -m ruff check .
	@"$(PY)" -m mypy

clean: ## remove caches and .venv; runs, figures and data stay
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
