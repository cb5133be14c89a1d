# Everything a person or a CI does here. Needs: git, make, Python >= 3.11 with venv. The rest comes from PyPI, locked in uv.lock.

# What is there before uv.lock can be read, by hashes.
INSTALLERS := tools/installers.txt
UV_VERSION := $(shell sed -n 's/^uv==\([0-9.]*\).*/\1/p' $(INSTALLERS))
# The first Python that is new enough; name another with PYTHON=...
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; exit; }; done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made-from-lock
# The chart carries a copy: helm packages nothing from outside of its folder.
CRD := crds/lmj.dev_livemigrationjobs.yaml charts/lmj/files/lmj.dev_livemigrationjobs.yaml
EXAMPLE := examples/quickstart.yaml
# Generated from the models, and texts with tables that are made from benchmarks/results.
REFERENCE := docs/fields.md
FIGURES := README.md docs/benchmarks.md

# The uv on PATH when it is the locked version, else our own in .uv/.
UV := $(shell command -v uv >/dev/null 2>&1 && uv --version 2>/dev/null | grep -q '^uv $(UV_VERSION)\b' && command -v uv || echo .uv/bin/uv)
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: same-bits help setup python quickstart check format-check types imports crd-fresh docs-fresh lock-fresh yaml docs test test-unit test-integration test-e2e test-all mutants bench bench-against bench-recovery bench-recovery-cluster bench-migration bench-migration-cluster bench-operator bench-tenants bench-relay bench-replicas bench-script bench-tasks bench-checkpoint bench-plan cluster-programs helm crd reference figures chart-lint report-picture images test-images format clean cluster-up cluster-down
.DELETE_ON_ERROR:
# The environment is this folder's, whatever the caller's shell is in.
# Compiled tests are kept: compiling them again each time costs as much as importing torch.
unexport VIRTUAL_ENV UV_PROJECT_ENVIRONMENT PYTHONHOME PYTHONDONTWRITEBYTECODE
MAKEFLAGS += --no-print-directory

help: ## List the targets.
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | awk -F'\t' '{ printf "  make %-24s %s\n", $$1, $$2 }'

# --- environment ---------------------------------------------------------------------------------------------------------

setup: $(STAMP) ## Make or update the environment in .venv/ (locked versions from PyPI).

# An older uv of ours is replaced when UV_VERSION changes.
UV_READY := $(if $(filter .uv/bin/uv,$(UV)),.uv/version-$(UV_VERSION))

.uv/version-$(UV_VERSION): | python
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Python's venv module is missing; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "==> uv $(UV_VERSION) into .uv/"
	@$(PYTHON) -m venv --clear .uv
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(INSTALLERS)
	@touch $@

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; }

# Compiled here, once: a worker that compiles torch and transformers as it imports them starts in 20 s instead of 8.
$(STAMP): uv.lock pyproject.toml | python $(UV_READY)
	@echo "==> environment in $(VENV)/ from uv.lock (PyTorch is large: the first time takes a few minutes and 6 GB)"
	@$(UV) sync --locked --all-extras --quiet --compile-bytecode --no-python-downloads --python '$(PYTHON)'
	@touch $@

# --- use -----------------------------------------------------------------------------------------------------------------

quickstart: $(STAMP) ## Train the example: a BERT classifier as a two-stage pipeline on this machine.
	@echo "==> lmj run $(EXAMPLE)"
	@$(BIN)/lmj run $(EXAMPLE)

bench: $(STAMP) ## Compare this pipeline with PyTorch's and with what two busy cores can do. ARGS='--tiny' tries it.
	@$(BIN)/python benchmarks/pipeline.py $(ARGS)

bench-against: $(STAMP) ## Has the pipeline become slower since another commit? Both take turns. BASE=main
	@PYTHONPATH='$(CURDIR)/tools' $(BIN)/python benchmarks/against.py $(or $(BASE),main) $(ARGS)

bench-recovery: $(STAMP) ## Kill workers of a job and of the same under torchrun: time to the next new step, and what being ready costs (Linux). ARGS='--help' tells more.
	@$(BIN)/python benchmarks/recovery.py $(ARGS)

bench-recovery-cluster: $(STAMP) ## Delete pods of a job and cut nodes' power on a cluster of plain processes (root on Linux, Go). ARGS='--trials 20'
	@PYTHONPATH='$(CURDIR)/tests:$(CURDIR)/tests/e2e' $(BIN)/python benchmarks/recovery_cluster.py $(ARGS)

bench-migration: $(STAMP) ## Move ranks to other pods while training goes on, beside restarts, up to the size of BERT-base (Linux). ARGS='--help' tells more.
	@$(BIN)/python benchmarks/migration.py $(ARGS)

bench-migration-cluster: $(STAMP) ## The same between nodes whose cables carry 1 Gbit/s (root on Linux, Go). ARGS='--moves 2'
	@PYTHONPATH='$(CURDIR)/tests:$(CURDIR)/tests/e2e' $(BIN)/python benchmarks/migration_cluster.py $(ARGS)

bench-replicas: $(STAMP) ## Two replicas beside DDP by torchrun and accelerate, one of four killed, and one that joins (Linux). ARGS='--help' tells more.
	@$(BIN)/python benchmarks/replicas.py $(ARGS)

bench-checkpoint: $(STAMP) ## Save BERT-base with its moments beside torch.distributed.checkpoint and torch.save, and load it into other shapes (Linux). ARGS='--help' tells more.
	@$(BIN)/python benchmarks/checkpoint.py $(ARGS)

bench-tasks: $(STAMP) ## Train BERT-base and a small Llama with adapters, each in one process, beside transformers.Trainer (Linux). ARGS='--help' tells more.
	@$(BIN)/python benchmarks/tasks.py $(ARGS)

bench-script: $(STAMP) ## A user's script as a job and under torchrun's elastic agents: a process killed, a node lost, undisturbed (Linux). ARGS='--help' tells more.
	@$(BIN)/python benchmarks/script.py $(ARGS)

bench-operator: $(STAMP) ## Measure the operator: 1,000 jobs on 4,000 faked pods (root on Linux, Go). ARGS='--jobs 50' for less.
	@PYTHONPATH=tests $(BIN)/python benchmarks/operator_scale.py $(ARGS)

bench-tenants: $(STAMP) ## A thousand hostile jobs beside another tenant's: memory, stops of the loop, starts, pods made (root on Linux, Go). ARGS='--tiny' tries it.
	@PYTHONPATH=tests $(BIN)/python benchmarks/tenants.py $(ARGS)

CLUSTER := PYTHONPATH=tests $(BIN)/python -m cluster

bench-plan: $(STAMP) ## Measure the plan, its status and a step's messages with up to 1,024 ranks (simulated). ARGS='--repeats 5' for less.
	@PYTHONPATH=tests $(BIN)/python benchmarks/plan_scale.py $(ARGS)

bench-relay: $(STAMP) ## What encryption between pods costs: bytes, messages, steps and moves through two relays beside the same without (Linux). ARGS='--rounds 1' for less.
	@$(BIN)/python benchmarks/relay_cost.py $(ARGS)

# They take minutes on a fresh machine: beside checks and unit tests, which use one core. Who needs them waits for them, and says what is wrong.
cluster-programs: $(STAMP)
	@$(CLUSTER) build >/dev/null 2>&1 </dev/null &

# For the chart's tests: the one on PATH, else it is built, or waited for (it is the first of the cluster's programs). Without Go they skip.
helm: $(STAMP)
	@command -v helm >/dev/null || $(CLUSTER) build helm || test $$? -eq 3

cluster-up: $(STAMP) ## Start a Kubernetes cluster of plain processes here (Linux, root, Go); NODES=3.
	@$(CLUSTER) up --nodes $(or $(NODES),3)

cluster-down: $(STAMP) ## Remove it.
	@$(CLUSTER) down

# --- check and test ------------------------------------------------------------------------------------------------------

check: format-check types imports crd-fresh docs-fresh lock-fresh yaml ## Lint, types, layers, and that generated files are fresh.

format-check: $(STAMP)
	@echo "==> ruff"
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo "run: make format" >&2; exit 1; }

types: $(STAMP)
	@echo "==> mypy"
	@$(BIN)/mypy

imports: $(STAMP)
	@echo "==> import-linter"
	@$(BIN)/lint-imports --no-cache >$(VENV)/.lint-imports.log 2>&1 || { cat $(VENV)/.lint-imports.log; exit 1; }

crd-fresh: $(STAMP)
	@echo "==> CRD"
	@$(BIN)/python tools/crd.py --check $(CRD)

docs-fresh: $(STAMP)
	@echo "==> field reference and figures"
	@$(BIN)/python tools/reference.py --check $(REFERENCE)
	@PYTHONPATH=tools $(BIN)/python -m figures --check $(FIGURES)

lock-fresh: $(STAMP)
	@echo "==> uv.lock"
	@$(UV) lock --check --quiet || { echo "uv.lock does not match pyproject.toml; run: uv lock" >&2; exit 1; }

yaml: $(STAMP)
	@echo "==> yamllint"
	@$(BIN)/yamllint --strict .

test: cluster-programs check test-unit test-integration test-e2e ## Everything a change must pass: check, then all tests that are not slow.

test-unit: $(STAMP) ## Only the fast tests: under a minute on two cores.
	@echo "==> unit tests"
	@OMP_NUM_THREADS=1 $(PYTEST) tests/unit tests/simulation -q -n 2 --dist loadfile -m 'not integration and not e2e and not slow'

test-integration: $(STAMP) helm ## Only the tests that start processes or servers, or train a whole small job.
	@echo "==> integration tests"
	@OMP_NUM_THREADS=1 $(PYTEST) -q -n 2 --dist loadfile -m 'integration and not e2e and not slow'

test-e2e: $(STAMP) ## Only the tests that run the real command with real processes.
	@echo "==> end-to-end tests"
	@OMP_NUM_THREADS=1 $(PYTEST) -q -m 'e2e and not slow' --durations 15

test-all: check $(STAMP) helm ## The slow tests too, and new examples for the tests of properties.
	@LMJ_EXPLORE=1 OMP_NUM_THREADS=1 $(PYTEST) -q

same-bits: $(STAMP) ## Compare losses and weights of a dozen jobs with those of another commit's code. BASE=main
	@$(BIN)/python tools/same_bits.py $(or $(BASE),main)

mutants: $(STAMP) ## Break the code in hundreds of places: does a test notice each? ARGS='--seed 2', '--only worker/keeper.py' (see docs/mutants.md)
	@PYTHONPATH=tools $(BIN)/python -m mutants $(ARGS)

# --- make things ---------------------------------------------------------------------------------------------------------

crd: $(STAMP) ## Write the CustomResourceDefinition from the models.
	@$(BIN)/python tools/crd.py $(CRD)

reference: $(STAMP) ## Write the field reference (docs/fields.md) from the models.
	@$(BIN)/python tools/reference.py $(REFERENCE)

figures: $(STAMP) ## Write the tables of README.md and docs/benchmarks.md from benchmarks/results.
	@PYTHONPATH=tools $(BIN)/python -m figures $(FIGURES)

docs: $(STAMP) ## Build the documentation site in site/; a link that leads nowhere is an error.
	@echo "==> mkdocs"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

chart-lint: $(STAMP) helm ## Lint the chart and test what it renders to (helm is built where it is not on PATH, with Go).
	@$(PYTEST) -q tests/unit/chart

report-picture: $(STAMP) ## Run the quickstart, kill a worker, move a rank, and make the README's picture of the report (Chromium).
	@LMJ_PICTURE=docs/report.png OMP_NUM_THREADS=1 $(PYTEST) -q tests/e2e/test_report_page.py

images: $(STAMP) ## Build both images (Docker that runs, or as root on Debian one that is started for it). BASE_IMAGE=, TORCH_INDEX=
	@cd tests && nice -n 19 ../$(BIN)/python -m images build $(if $(TORCH_INDEX),--torch-index '$(TORCH_INDEX)')

test-images: $(STAMP) ## Run the quickstart inside the trainer image, confined as a pod is.
	@cd tests && nice -n 19 ../$(BIN)/python -m images test

format: $(STAMP) ## Format the code and fix what ruff can fix.
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format --quiet

clean: ## Remove environments and caches (outputs in runs/ stay).
	@rm -rf $(VENV) .uv site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
