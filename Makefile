# `make demo` trains a GPT on "tpu"; `make test` checks everything. Each sets up what it needs in its own virtual environment, and
# does so again only when pyproject.toml or constraints.txt changes. They need Python 3.11 or newer with venv, and the package index that pip uses.

VENV ?= .venv
ARGS ?=
# `make tests`: those of the gate; all of them with SELECT=.
SELECT ?= not long
# `make conformance`: samples of each op in float32 and at the other dtypes, and the file of results.
K ?= 10
K_OTHERS ?= 3
RESULTS ?= out/conformance.jsonl
# `make conformance SIZES=large`: samples of each op at each dtype, their seed, and the file of results.
K_LARGE ?= 2
SEED ?= 0
ENLARGED ?= out/large.jsonl
# `make tpu-column`: samples of each op, the chips, and the folder of results, a file for each chip.
K_COMPILED ?= 3
CHIPS ?= v6e v5e cuda
COMPILED ?= out/compiled
# `make judge`: what the TPU compiler made of each step.
JUDGED ?= docs/judge.json
# `make padding-sweep`: samples of each op, and the file of results.
K_PADDED ?= 1
PADDED ?= out/padding.jsonl
# `make argument-sweep`: the same.
K_VARIED ?= 1
VARIED ?= out/arguments.jsonl
# `make random-sizes`: how many programs, and how many expressions of sizes.
SIZED ?= 1000
EXPRESSIONS ?= 300
# `make random-programs`: how many.
N ?= 1000
# `make random-trainings`: how many.
TRAINED ?= 400
# `make interrupts`: how many.
INTERRUPTS ?= 4000
# `make random-switches`: how many.
SWITCHED ?= 300
# `make bad-inputs`: how many.
WRONG ?= 3000
# `make random-convolutions`: how many.
CONVOLVED ?= 5000
# `make upstream`: torch's folder test/. SEED is that of its samples, too.
FOLDER ?=
# `make distributed`: how many random programs of ranks that diverge.
DIVERGENT ?= 200
# `make bench`: every script of benchmarks/, one at a time, and where their figures go.
BENCHMARKS := $(filter-out common host_time language table workloads,$(basename $(notdir $(sort $(wildcard benchmarks/*.py)))))
FIGURES ?= out/bench
# `make doctor-plugin`: the CPU client of XLA as a library with the PJRT C API, and where it goes.
PLUGIN ?= fastatomstruct-xla-cpu==2026.6.23
PLUGINS := $(VENV)/plugins
LIBRARY := $(PLUGINS)/fastatomstruct_xla_cpu/libpjrt_cpu.so
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && command -v $$p && break; done)

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TESTED := $(VENV)/.installed-test

.PHONY: help demo test test-all test-release tests random-programs random-switches interrupts bad-inputs random-convolutions upstream distributed doctor doctor-plugin lint format bench conformance coverage judge calibration clean

help:
	@echo 'make demo         train a GPT on "tpu", about 3 minutes (ARGS="--steps 50" for less; examples/train_gpt.py --help)'
	@echo 'make test         lint, types, and the tests of the gate, 15 to 30 minutes on two cores'
	@echo 'make tests        the tests alone (SELECT= for those marked long, too)'
	@echo 'make test-all     all tests, compiled as users compile, and some of the random ones, about 40 minutes'
	@echo 'make test-release make test-all, and the long forms of the random ones, another two hours'
	@echo 'make random-programs  a thousand random programs through every pass and pipeline, about 5 minutes (N=1000)'
	@echo 'make random-trainings  random trainings of small models, losses as on the CPU, about 2 hours (TRAINED=400)'
	@echo 'make interrupts   training loops interrupted at random points, in every mode, about 20 minutes (INTERRUPTS=4000)'
	@echo 'make random-switches  random programs, and every op, while global switches of torch change, about 15 minutes (SWITCHED=300)'
	@echo 'make bad-inputs   thousands of calls that are wrong somewhere, refused as on the CPU, an hour (WRONG=3000)'
	@echo "make upstream     torch's device-generic tests from FOLDER, with controls on the CPU, and their table in docs/, hours"
	@echo 'make random-convolutions  thousands of chains of convolutions, pools and other windows, and their gradients, an hour (CONVOLVED=5000)'
	@echo 'make distributed  several processes: all of its tests, and random programs of ranks that diverge, about 15 minutes (DIVERGENT=200)'
	@echo 'make test-fronts  Helion, TorchTitan and vLLM on the device, from packages beside the environment (docs/helion.md, examples/titan, plugins/vllm), 40 minutes'
	@echo 'make test-versions  each supported combination of torch, jax and Python in an environment of its own, and the table of the README, hours'
	@echo 'make doctor       what works on this machine, about 2 minutes (ARGS="transfers training"; python -m lazytpu.doctor --help)'
	@echo 'make doctor-plugin  the same through the PJRT C API, the interface of a TPU, with a client of the CPU (63 MB from the index)'
	@echo 'make lint         ruff and pyright only'
	@echo 'make format       let ruff sort imports and mend what it can'
	@echo 'make bench        what recording, cuts, the cache, memory and the first minute cost, in one table, about 20 minutes (ARGS=--quick)'
	@echo 'make conformance  every op of the database of torch against the CPU, half an hour, goes on where it was stopped (K=10 K_OTHERS=3)'
	@echo 'make conformance SIZES=large  the same at sizes of work, by errors against float64, hours, goes on where it was stopped (SEED=0 K_LARGE=2)'
	@echo 'make tpu-column   the programs of every op compiled for TPUs that are not here, one hour, goes on where it was stopped'
	@echo 'make padding-sweep  every op at three sizes, with one program for all, about 15 minutes, goes on where it was stopped'
	@echo 'make argument-sweep every op with each integer argument at several values and shapes, in one process'
	@echo 'make random-sizes  a thousand random programs at sizes that vary, and expressions of sizes, about 40 minutes (SIZED=1000 EXPRESSIONS=300)'
	@echo 'make coverage     docs/conformance.md and .json from what these two, and make padding-sweep, found'
	@echo 'make judge        what the passes gain by the TPU compiler, into docs/passes.md and docs/collectives.md, an hour (ARGS="llama --topology v5e:2x2")'
	@echo 'make calibration  what libtpu says of five steps, beside the model of lazytpu-show lines --model, about 5 minutes'
	@echo 'make docs         the documentation as a site, in site/, with links and anchors checked'
	@echo 'make ir           docs/ir.md, the reference of the dialect, from the op definitions'
	@echo 'make clean        remove the virtual environment and the caches'

demo: $(INSTALLED)
	$(BIN)/python examples/train_gpt.py $(ARGS)

# Lint, beside the tests: the type checker keeps one core busy for a minute, where the tests have a worker for each.
test: $(TESTED)
	@$(MAKE) --no-print-directory --jobs 2 lint tests

# All tests, compiled as users compile, and some of the random ones: about 40 minutes on two cores.
test-all: $(TESTED)
	@$(MAKE) --no-print-directory --jobs 2 lint tests SELECT= ARGS='--optimized $(ARGS)'
	@$(MAKE) --no-print-directory --jobs 2 random-programs random-sizes interrupts random-switches bad-inputs random-convolutions \
		N=300 SIZED=200 EXPRESSIONS=60 INTERRUPTS=800 SWITCHED=60 WRONG=300 CONVOLVED=300

# What a release has to pass besides: the long forms of the random tests, one after the other.
test-release: test-all
	@$(MAKE) --no-print-directory random-programs random-sizes random-switches interrupts bad-inputs random-convolutions
	@$(MAKE) --no-print-directory padding-sweep argument-sweep

# Two workers, one thread each: two cores. Commands of the README that tests run, make among them, get no flags of this one.
tests: $(TESTED)
	@command -v "$${CHROMIUM:-chromium}" >/dev/null || echo 'chromium is not there: the page of lazytpu-show html is not opened in a browser' \
		'(on Debian: apt-get install chromium)' >&2
	env -u MAKEFLAGS -u ARGS -u SELECT OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup $(if $(SELECT),-m '$(SELECT)') $(ARGS)

# One process: hypothesis draws the programs one after the other. Each goes through every pass alone and every pipeline.
random-programs: $(TESTED)
	OMP_NUM_THREADS=1 RANDOM_PROGRAMS=$(N) $(BIN)/python -m pytest tests/passes/test_semantics.py \
		tests/passes/padding/test_random_programs.py $(ARGS)

# One that fails names its seed: RANDOM_SIZES_FROM=seed SIZED=1 runs it alone.
.PHONY: random-sizes
random-sizes: $(TESTED)
	OMP_NUM_THREADS=1 RANDOM_SIZES=$(SIZED) RANDOM_EXPRESSIONS=$(EXPRESSIONS) $(BIN)/python -m pytest \
		tests/conformance/test_random_sizes.py tests/conformance/test_sized_expressions.py $(ARGS)

# Child processes of 40 trainings. One that fails names its seed: RANDOM_TRAININGS_FROM=seed TRAINED=1 runs it alone.
.PHONY: random-trainings
random-trainings: $(TESTED)
	OMP_NUM_THREADS=1 RANDOM_TRAININGS=$(TRAINED) $(BIN)/python -m pytest tests/training/test_random_trainings.py $(ARGS)

interrupts: $(TESTED)
	OMP_NUM_THREADS=1 INTERRUPTS=$(INTERRUPTS) $(BIN)/python -m pytest tests/interrupts/test_storm.py $(ARGS)

# One process: the switches are those of the process. Each program runs on the device and on the CPU.
random-switches: $(TESTED)
	OMP_NUM_THREADS=1 RANDOM_SWITCHES=$(SWITCHED) $(BIN)/python -m pytest tests/frontend/recording/test_ambient.py $(ARGS)
# Child processes with bounded memory, one at a time: what ends one of them is found, and the others go on.
bad-inputs: $(TESTED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.bad_inputs -n $(WRONG) $(ARGS)

# A run that is started again continues: each result is a line of out/upstream.jsonl.
upstream: $(TESTED)
	$(BIN)/python -m tools.upstream "$(FOLDER)" --seed $(SEED) --docs docs $(ARGS)

# The same, with chains that XLA compiles. One that fails names its number: ARGS='--first number' CONVOLVED=1 runs it alone.
random-convolutions: $(TESTED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.random_convolutions -n $(CONVOLVED) $(ARGS)

# One test at a time: each uses two processes, or four.
distributed: $(TESTED)
	OMP_NUM_THREADS=1 DIVERGENT=$(DIVERGENT) $(BIN)/python -m pytest tests/distributed $(ARGS)

# Packages of other projects lie beside the environment, in out/fronts and out/vllm, without their own torch.
.PHONY: test-fronts
test-fronts: $(TESTED)
	$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps --upgrade --target out/fronts -r tools/fronts/requirements.txt
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/out/fronts $(BIN)/python -m pytest tools/fronts --ignore tools/fronts/test_vllm.py $(ARGS)
	$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps --upgrade --target out/vllm -r tools/fronts/vllm-requirements.txt ./plugins/vllm vllm==0.29.0
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/out/vllm $(BIN)/python -m pytest tools/fronts/test_vllm.py $(ARGS)

# Each combination of versions in an environment of its own, which lasts hours the first time; ARGS names some.
.PHONY: test-versions
test-versions: $(TESTED)
	$(BIN)/python -m tools.versions $(ARGS)

doctor: $(INSTALLED)
	$(BIN)/python -m lazytpu.doctor $(ARGS)

# No program needs this library: it lies beside the environment, not in it.
doctor-plugin: $(INSTALLED)
	@test -e $(LIBRARY) || $(BIN)/python -m pip install --disable-pip-version-check --no-deps --target $(PLUGINS) $(PLUGIN) || \
		{ echo 'the plugin could not be installed: set PJRT_NAMES_AND_LIBRARY_PATHS=name:path to that of another, JAX_PLATFORMS=name,' \
		'and run make doctor' >&2; exit 1; }
	PJRT_NAMES_AND_LIBRARY_PATHS=plug:$(abspath $(LIBRARY)) JAX_PLATFORMS=plug $(BIN)/python -m lazytpu.doctor $(ARGS)

lint: $(TESTED)
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(TESTED)
	$(BIN)/ruff check --fix .

bench: $(INSTALLED)
	@rm -rf $(FIGURES)
	@for name in $(BENCHMARKS); do echo "$$name ..." >&2; \
		$(BIN)/python benchmarks/$$name.py --json $(FIGURES)/$$name.json $(ARGS) >/dev/null; done; true
	@$(BIN)/python benchmarks/table.py $(FIGURES)

# `make conformance SIZES=large` runs ops at sizes of work instead, and compares their errors.
conformance: $(TESTED)
ifeq ($(SIZES),large)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.conformance large -k $(K_LARGE) --seed $(SEED) --results $(ENLARGED) --page docs/conformance-large.md $(ARGS)
else
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.conformance sweep -k $(K) -j $(K_OTHERS) --results $(RESULTS) $(ARGS)
endif

.PHONY: padding-sweep
padding-sweep: $(TESTED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.conformance padding --dtypes float32 -k $(K_PADDED) --results $(PADDED) $(ARGS)

.PHONY: argument-sweep
argument-sweep: $(TESTED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.conformance arguments --dtypes float32 -k $(K_VARIED) --results $(VARIED) $(ARGS)

.PHONY: tpu-column
tpu-column: $(TESTED)
	for chip in $(CHIPS); do OMP_NUM_THREADS=1 $(BIN)/python -m tools.conformance compile $$chip -k $(K_COMPILED) --compiled $(COMPILED) $(ARGS) \
		|| exit; done

judge: $(TESTED)
	$(BIN)/python -m tools.judge --results $(JUDGED) $(ARGS)
	$(BIN)/python -m tools.judge --results $(JUDGED) --write docs/passes.md
	$(BIN)/python -m tools.judge --results $(JUDGED) --write docs/collectives.md

coverage: $(TESTED)
	$(BIN)/python -m tools.conformance table --results $(RESULTS) --compiled $(COMPILED) --padded $(PADDED) $(ARGS)

calibration: $(TESTED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.inspection.step.calibration

.PHONY: docs ir
# Material announces its successor with every build; the variable is its own.
docs: $(TESTED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet $(ARGS)

ir: $(TESTED)
	$(BIN)/python -m tools.reference $(ARGS)

clean:
	rm -rf $(VENV) site .pytest_cache .ruff_cache .hypothesis *.egg-info

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'lazytpu needs Python 3.11 or newer with the venv module (on Debian: apt-get install python3 python3-venv)' \
		'; name one with: make PYTHON=/path/to/python' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

# pip would compile the 15,000 files of its packages on one core, which takes most of a minute. Some of them are templates
# for other versions of Python: they cannot be compiled, and need not be.
$(TESTED): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[test]'
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@ $(INSTALLED)
