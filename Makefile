# Needs python3 (3.11 or newer) with its venv module, make and git; the rest is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMPILED_VENV := .venv-compiled
COMPILED_BIN := $(COMPILED_VENV)/bin
COMPILED_STAMP := $(COMPILED_VENV)/.compiled
COMPILED_NEEDS := $(COMPILED_VENV)/.installed
$(STAMP): EXTRAS := dev,pipeline,tracing
$(COMPILED_NEEDS): EXTRAS := dev
# In the order of tests/conftest.py: the files that take longest go first.
PARALLEL := --dist loadfile --no-loadscope-reorder -n
# Many tests wait for processes that they have started, but not those with Spark.
WORKERS := $(shell expr $$(nproc) + 1)
# Otherwise each worker rewrites the assertions of all tests again, and each broker that they start
# compiles what has changed since `make setup`. An empty value is no value for Python.
export PYTHONDONTWRITEBYTECODE :=
BENCH_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup java jars programs demo test test-vibemq test-s3 faults fuzz lint docs screenshots bench compiled test-compiled clean

help:
	@echo "make setup          create $(VENV) with everything that is needed"
	@echo "make demo           start a broker and watch messages cross protocols"
	@echo "make test           run the tests (PYTEST_ARGS='-k journal' to choose)"
	@echo "make test-vibemq    run the tests of VibeMQ's own .NET client (VIBEMQ_PEER=directory of its programs)"
	@echo "make test-s3        run the tests of the pipeline with a lake in S3; needs Go"
	@echo "make faults         kill -9, torn files, full disks and more, for a quarter of an hour"
	@echo "make fuzz           random tests with new examples, hostile clients for ten minutes"
	@echo "make lint           ruff, mypy --strict, import layers"
	@echo "make docs           build the site of the documentation into build/site"
	@echo "make screenshots    take the screenshots of docs/console.md; needs Chromium"
	@echo "make bench          measure throughput and latency (BENCH_ARGS='--url URL' for a running broker)"
	@echo "make compiled       the same program, its hot modules compiled, in $(COMPILED_VENV); needs a C compiler"
	@echo "make test-compiled  run the tests on that"
	@echo "make clean          remove everything that was built"

setup: $(STAMP) java jars

$(STAMP) $(COMPILED_NEEDS): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) was not found. On Debian or Ubuntu: sudo apt install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "SluiceMQ needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) -V 2>&1)." >&2; \
	  echo "Install one (sudo apt install python3.11 python3.11-venv)," >&2; \
	  echo "then name it: make setup PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  echo "$(PYTHON) cannot create virtual environments." >&2; \
	  echo "On Debian or Ubuntu: sudo apt install python$$version-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]' --constraint constraints.txt
	@# pip compiles what it installs, except for an editable package
	@$(@D)/bin/python -m compileall -q src
	@touch $@

# Without a traceback, as the error has instructions to install Java.
FIND_JAVA = $(BIN)/python -c 'import sys; sys.tracebacklimit = 0; \
  from sluicemq.pipeline.jars import find_java; find_java()'

# Spark runs on Java; nothing else needs it.
java: $(STAMP)
	@$(FIND_JAVA) 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y openjdk-17-jre-headless >/dev/null; \
	  fi; $(FIND_JAVA); }

# Delta's, which Spark's own resolver fetches once.
jars: java
	@$(BIN)/sluicemq pipeline jars >/dev/null

# Programs that only tests and screenshots need.
programs: $(STAMP)
	@$(BIN)/python -m tests.support.programs

demo: setup
	$(BIN)/sluicemq demo

# Those with Spark go by themselves: what it leaves behind in a process is not to fail other tests.
SPARK_TESTS := tests/pipeline tests/faults/test_pipeline_kill.py
ifdef PYTEST_ARGS
test: setup programs
	@$(BIN)/python -m pytest $(PYTEST_ARGS)
else
test: setup programs
	@$(BIN)/python -m pytest $(PARALLEL) $(WORKERS) --ignore=tests/s3 $(SPARK_TESTS:%=--ignore=%)
	@$(BIN)/python -m pytest $(PARALLEL) auto $(SPARK_TESTS)
endif

# The integration tests of VibeMQ 1.8.0, which start `sluicemq serve` from PATH. They are not part of this project.
VIBEMQ_PEER ?= ../shared/peers/vibemq
VIBEMQ_RESULT := 69 passed, 0 failed
test-vibemq: setup
	@test -f '$(VIBEMQ_PEER)/run' || { \
	  echo "$(VIBEMQ_PEER)/run was not found. Name the directory of VibeMQ's programs: VIBEMQ_PEER=..." >&2; exit 1; }
	@mkdir -p build
	@status=0; PATH='$(abspath $(BIN))':"$$PATH" timeout 600 bash '$(VIBEMQ_PEER)/run' suite >build/vibemq-suite.log 2>&1 || status=$$?; \
	  cat build/vibemq-suite.log; \
	  test "$$(tail -n 1 build/vibemq-suite.log)" = '$(VIBEMQ_RESULT)' || { \
	  echo "The tests of VibeMQ ended with status $$status; the last line must be: $(VIBEMQ_RESULT)" >&2; exit 1; }

# A lake in object storage: downloads 690 MB of Java libraries, and builds an S3 server with Go.
test-s3: setup
	@$(BIN)/sluicemq pipeline jars --for s3a >/dev/null
	@$(BIN)/python -m tests.s3.gateway
	@$(BIN)/python -m pytest tests/s3 $(PYTEST_ARGS)

faults: setup
	@FAULT_LONG=1 $(BIN)/python -m pytest tests/faults --durations=0 $(PYTEST_ARGS)

fuzz: setup
	@FUZZ=1 $(BIN)/python -m pytest -m hypothesis $(PYTEST_ARGS)
	@FUZZ=1 $(BIN)/python -m pytest -s tests/fuzz/test_listeners.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict --explicit-package-bases src benchmarks
	$(BIN)/lint-imports
	$(BIN)/python tools/wording.py

# The variable silences an advertisement.
docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

screenshots: setup programs
	$(BIN)/python -m tools.screenshots

bench: setup
	$(BIN)/python -m benchmarks.scenarios quick $(BENCH_ARGS)

compiled: $(COMPILED_STAMP)

# See setup.py. `build` goes first: what it holds of modules that exist no more would be installed too.
$(COMPILED_STAMP): $(COMPILED_NEEDS) setup.py $(shell find src -name '*.py')
	@$(COMPILED_BIN)/python -c 'import os, sys, sysconfig as s, shutil; \
	  sys.exit(not shutil.which(os.environ.get("CC", "cc")) or not os.path.exists(s.get_path("include") + "/Python.h"))' || { \
	  echo "A C compiler and Python.h are needed. On Debian or Ubuntu: sudo apt install gcc python3-dev" >&2; exit 1; }
	rm -rf build
	$(COMPILED_BIN)/python -m pip install --quiet --disable-pip-version-check 'setuptools>=77'
	SLUICE_COMPILE=1 $(COMPILED_BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --no-build-isolation --no-deps --force-reinstall .
	@$(COMPILED_BIN)/sluicemq --version
	@touch $@

test-compiled: compiled
	@$(COMPILED_BIN)/python -m pytest $(PARALLEL) $(WORKERS) --ignore=tests/s3 $(SPARK_TESTS:%=--ignore=%) $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) $(COMPILED_VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
