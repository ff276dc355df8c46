# Each target makes what it needs in .venv; PYTHON picks the interpreter, TORCH the torch to install
# (TORCH='torch==2.10.*' for a driver of CUDA 12; plain torch is constraints.txt's), TORCH_INDEX where
# it comes from, if not PyPI (https://download.pytorch.org/whl/cu126). Another of either installs anew.
# PyPI's torch is for CUDA: without a GPU the build for CPUs is taken from CPU_INDEX, where it answers.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch
TORCH_INDEX ?=
CPU_INDEX ?= $(if $(TORCH_INDEX)$(wildcard /dev/nvidia[0-9]* /dev/kfd),,https://download.pytorch.org/whl/cpu)
BIN = $(VENV)/bin
OUT ?= out
CONSTRAINTS = $(VENV)/constraints.txt
INSTALL = $(BIN)/pip install --quiet --constraint $(CONSTRAINTS)
# Triton comes with the torch that is named
FREE = $(if $(filter-out torch,$(TORCH)),^(torch|triton)==,^$$)
# gpu-check: a part of it (quick, algorithms, nccl, tests, shared), and a folder of wheels where there
# is no network: then PYTHON is one with torch and Triton
SLICE ?=
WHEELS ?=
# test: which tests, as pytest's -m has it
MARKS ?= not long and not slow
# fake-gpu: torch's version there, a build for CUDA, and what else is installed for the scenarios
FAKE ?= .venv-fake
FAKE_TORCH ?= $(shell sed -n 's/^torch==//p' constraints.txt)
FAKE_EXTRAS ?= gpu,mpi
# libraries: where environments with other libraries go, for tests/backends
LIBRARIES ?= .venv-backends
# matrix: where its environments are made, one at a time, and which Pythons and torches it tries
MATRIX ?= .venv-matrix
PYTHONS ?= 3.11,3.12,3.13
TORCHES ?= oldest,pinned,newest
HERE = PYTHONPATH=$(abspath $(VENV)/wheels):$(CURDIR)
# where .pyc files are disabled, each process of a test compiles all that it imports
export PYTHONDONTWRITEBYTECODE =
GPU_PYTHON = $(if $(WHEELS),$(HERE) $(PYTHON),$(BIN)/python)

.PHONY: venv demo test test-all libraries snapshots snapshots-check lint perf faults examples lab gpu-check fake-gpu fake-gpu-report recordings gallery matrix clean FORCE

$(CONSTRAINTS): constraints.txt FORCE  # written only where it would differ
	@mkdir -p $(VENV)
	@{ echo "# of $(TORCH) $(TORCH_INDEX)"; grep -Ev '$(FREE)' constraints.txt; } > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(BIN)/collbench: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(if $(CPU_INDEX),-$(INSTALL) --no-deps --retries 0 --index-url $(CPU_INDEX) '$(TORCH)')
	$(INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	$(INSTALL) --editable .
	@touch $@

venv: $(BIN)/collbench  ## collbench in $(VENV)

$(BIN)/pytest: $(BIN)/collbench
	$(INSTALL) --editable '.[test,mpi,ray]'
	@touch $@

$(VENV)/gpu: $(BIN)/pytest
	$(INSTALL) --editable '.[gpu]'
	@touch $@

$(VENV)/wheels: $(wildcard $(WHEELS)/*.whl)  # without a network: what the Python that is there lacks
	$(PYTHON) -m pip install --quiet --no-index --no-deps --upgrade --target $@ $(WHEELS)/*.whl
	@touch $@

$(BIN)/ruff: $(BIN)/pytest
	$(INSTALL) --editable '.[dev]'
	@touch $@

demo: $(BIN)/collbench  ## a real sweep over Gloo on this machine, verified and saved
	$(BIN)/collbench all_reduce -b 8 -e 64M -f 8 -g 2 --budget 30s

test: $(BIN)/pytest  ## the tests that can run here, but for slow ones; MARKS="not long" has those, too
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "$(MARKS)"

test-all: $(BIN)/pytest  ## every test that can run here
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

libraries: $(BIN)/pytest  ## JAX, MLX, and environments with MPICH and Intel MPI, which tests/backends finds
	$(INSTALL) --editable '.[jax,mlx]'
	$(BIN)/python tests/backends/build.py $(LIBRARIES)

snapshots: $(BIN)/pytest  ## what all commands print and write of recorded runs, kept in $(OUT)/snapshots
	$(BIN)/python tests/snapshots.py keep $(OUT)/snapshots

snapshots-check: $(BIN)/pytest  ## the same again: each line that differs
	$(BIN)/python tests/snapshots.py check $(OUT)/snapshots

lint: $(BIN)/ruff  ## format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

perf: $(BIN)/pytest  ## ratios against hand-written loops, libraries and memory copies, written to reports/
	$(BIN)/python tests/perf/run.py --output reports/perf.md
	$(BIN)/python tests/perf/executors.py --output reports/executors.md
	$(BIN)/python tests/perf/simulate.py
	$(BIN)/python tests/perf/nights.py --output reports/nights.md
	$(BIN)/python tests/perf/workload.py --output reports/workload.md
	$(BIN)/python tests/perf/recording.py --output reports/recording.md
	$(BIN)/python tests/perf/replay.py --output reports/replay.md
	$(BIN)/python tests/backends/build.py $(LIBRARIES) impi
	$(LIBRARIES)/impi/bin/python tests/perf/anchors.py --output reports/anchors.md

faults: $(BIN)/pytest  ## what becomes of runs and files that are broken on purpose, written to reports/ (hours)
	$(BIN)/python tests/perf/faults.py --output reports/faults.md
	$(BIN)/python tests/perf/fuzz.py
	$(BIN)/python tests/perf/ssh.py --output reports/ssh.md

examples: $(BIN)/pytest  ## weekly: libraries with files of their own in tests/backends, each in an environment (GBs)
	for name in xgboost paddlepaddle tensorflow-cpu mindspore; do \
	  $(PYTHON) -m venv $(LIBRARIES)/$$name && \
	  $(LIBRARIES)/$$name/bin/pip install --quiet --constraint $(CONSTRAINTS) --editable '.[test]' $$name && \
	  COLLBENCH_NEED=$$(echo $$name | sed 's/paddlepaddle/paddle/; s/-cpu//') \
	  $(LIBRARIES)/$$name/bin/pytest -q tests/backends/test_files.py -k $$(echo $$name | sed 's/paddlepaddle/paddle/; s/-cpu//') || exit 1; \
	done

lab: $(BIN)/pytest  ## what is measured on links of known rates (as root), written to reports/
	$(BIN)/python tests/perf/lab.py --output reports/lab.md --runs reports/lab
	$(BIN)/python tests/perf/wire.py --output reports/wire.md
	$(BIN)/python tests/perf/steps.py --output reports/steps.md

gpu-check: $(if $(WHEELS),$(VENV)/wheels,$(VENV)/gpu)  ## what this machine's GPUs show: bounds, nccl-tests beside, tests; all of it goes to $(OUT)
	mkdir -p $(OUT) && touch $(OUT)/begun
	$(GPU_PYTHON) -m collbench doctor | tee $(OUT)/doctor.txt || true
	$(GPU_PYTHON) tests/perf/gpu.py --output $(OUT) $(addprefix --slice ,$(SLICE)); status=$$?; \
	runs=$$(find $(OUT) -name '*.jsonl' -newer $(OUT)/begun ! -name '*beside*'); \
	[ -z "$$runs" ] || $(GPU_PYTHON) -m collbench report $$runs -o $(OUT)/report$(if $(filter 1,$(words $(SLICE))),-$(SLICE)).html; \
	tar czf $(OUT).tar.gz $(OUT); \
	exit $$status

fake-gpu: $(BIN)/pytest  ## the GPU path on a fake CUDA: MARKS="" for all of it, FAKE_TORCH for another torch
	$(PYTHON) tests/fakegpu/build.py $(FAKE) --torch $(FAKE_TORCH) --extras $(FAKE_EXTRAS)
	COLLBENCH_FAKE_GPU=$(FAKE) $(BIN)/pytest tests/fakegpu -n 2 -m "$(MARKS)"

fake-gpu-report:  ## all that runs and breaks there, written to reports/
	$(PYTHON) tests/fakegpu/build.py $(FAKE) --torch $(FAKE_TORCH) --extras gpu,mpi,ray,test
	COLLBENCH_FAKE_GPU=$(FAKE) $(PYTHON) tests/fakegpu/report.py --output reports/fake-gpu.md

matrix:  ## weekly: the wheel on each Python that is here beside old and new torches, written to help limits (15 GB)
	$(PYTHON) tests/install/matrix.py $(MATRIX) --pythons $(PYTHONS) --torches $(TORCHES) \
	  --page collbench/cli/pages/limits.md

recordings: libraries  ## reports/runs measured anew, but for libraries and advice-slow-links (10 minutes, on an idle machine)
	cd reports/runs && PATH="$(abspath $(BIN)):$$PATH" && \
	rm -f algorithms/*.jsonl training-step/*.jsonl night/*.jsonl orders/*.jsonl && \
	collbench run algorithms --max-time 0.5s --output algorithms/algorithms.jsonl && \
	collbench sendrecv --backend gloo -g 2 --sizes 1K,64K,4M --place out --max-time 0.5s --output algorithms/sendrecv.jsonl && \
	home=$$(mktemp -d) && \
	{ COLLBENCH_HOME=$$home collbench ab --suite ring-or-one-shot/suite.toml --base algo:ring --head algo:one_shot || \
	  [ $$? = 1 ]; } && \
	for side in base head; do mv $$home/runs/*-$$side.jsonl ring-or-one-shot/$$side.jsonl; done && rm -r $$home && \
	collbench workload fsdp2:llama3-8b --layers 2 --scale 1/64 -g 2 --compute sleep --tflops 2 -n 50 --output training-step/fsdp2.jsonl && \
	collbench workload ddp:gpt2-124m --scale 1/16 -g 2 --compute sleep --tflops 1 --blame -n 40 --output training-step/ddp.jsonl && \
	(cd recorded-job && torchrun --nproc-per-node 2 train.py && mv trace/rank-*.jsonl . && rmdir trace) && \
	collbench run night/suite.toml --output night/night.jsonl && \
	collbench run orders/suite.toml --output orders/gloo-and-open-mpi.jsonl && \
	collbench run orders/told.toml --output orders/open-mpi-told.jsonl && \
	$(abspath $(LIBRARIES))/mpich/bin/python -m collbench run orders/mpich.toml --output orders/mpich.jsonl && \
	$(abspath $(LIBRARIES))/impi/bin/python -m collbench run orders/mpi.toml --output orders/intel-mpi.jsonl

gallery: $(BIN)/collbench  ## the reports of reports/, made again from the runs recorded in reports/runs/
	for name in algorithms ring-or-one-shot training-step orders libraries; do \
	  runs="reports/runs/$$name/*.jsonl"; \
	  $(BIN)/collbench report $$runs --plotlyjs directory -o reports/$$name.html && \
	  $(BIN)/collbench report $$runs -o reports/$$name.md || exit 1; \
	done
	$(BIN)/collbench health reports/runs/night/*.jsonl --history sqlite:// --plotlyjs directory \
	  -o reports/night.html -o reports/night.md > /dev/null
	$(BIN)/collbench trace reports/runs/recorded-job/*.jsonl --plotlyjs directory \
	  -o reports/recorded-job.html -o reports/recorded-job.md > /dev/null
	cd reports && $(abspath $(BIN))/collbench advise --oversubscribed runs/advice-slow-links/*.jsonl \
	  --plotlyjs directory -o advice-slow-links.html -o advice-slow-links.md > /dev/null

clean:
	rm -rf $(VENV) $(FAKE) $(LIBRARIES) $(MATRIX) build dist .pytest_cache .mypy_cache .ruff_cache
