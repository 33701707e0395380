# Every target sets up what it needs; the second run is quick.
PYTHON ?= $(shell python3 tools/fastest_python.py)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2

.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || (python="$(PYTHON)" && echo "$(VENV) is made by $$python" && "$$python" -m venv $(VENV))
	@echo "installing into $(VENV) (the first time takes a few minutes)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,compression,spark,java,plots,delta,iceberg]'
	@touch $@

setup: $(STAMP) ## create the virtualenv and install everything

demo: $(STAMP) ## the whole product in a minute: broker, producer, push and POP consumers, pipeline on Spark
	@$(BIN)/python examples/demo/demo.py

lint: $(STAMP) ## ruff and mypy
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

test: lint ## lint, types and the whole fast test suite
	@$(BIN)/pytest -q -n $(WORKERS)

behaviours: $(STAMP) ## docs/behaviours.md from the tests, fails for a row without a passing test (ROWS=STO: only these)
	@$(BIN)/python tests/behaviours.py $(ROWS)

crash: $(STAMP) ## the long crash tests: kill -9 loops and fault-disk seeds
	@$(BIN)/pytest -q -n $(WORKERS) tests/crash --crash-full

sim: $(STAMP) ## consumption in virtual time: ten hours of push and pull, 5,000 seeds of POP (SEED=n: one)
	@$(BIN)/pytest -q tests/sim $(if $(SEED),--sim-seed $(SEED),--sim-full -n 2)

interop: $(STAMP) ## against the real Apache RocketMQ (needs Java 17 and Maven)
	@$(BIN)/pytest -q tests/interop -m interop --run-interop
	@$(BIN)/pytest -q tests/client --server=apache -o timeout=600

chaos: $(STAMP) ## the long Spark tests, an hour: 100 kills at random moments, memory under pressure, other versions
	@$(BIN)/pytest -q -s tests/spark/test_chaos.py --spark-full

floors: $(STAMP) ## the bounds of the Spark benchmark; half an hour, and it wants the machine for itself
	@$(BIN)/pytest -q -s tests/spark/test_floors.py --spark-full

cluster: $(STAMP) ## a pipeline on a Spark standalone cluster (master, two workers) against two broker shards
	@$(BIN)/pytest -q -s tests/spark/test_cluster.py --spark-full

clean: ## remove the virtualenv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info

.PHONY: help setup demo lint test behaviours crash sim interop chaos floors cluster clean
