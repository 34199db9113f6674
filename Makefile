# Commands for users and developers. `make demo` and `make test` require only Python and make.

PYTHON ?= python3
# Only tests use torch, and a CPU build is sufficient. It is installed first, so that pip fetches no
# larger build.
TORCH ?= torch==2.13.0
# Additional arguments: `make demo ARGS="--port 8001"`, `make test ARGS="tests/service -k queue"`.
ARGS ?=

# Accelerator of workers: cpu, cuda or tpu.
ACCELERATOR ?= cpu

# Set to any value to install the newest packages that pyproject.toml allows, instead of the tested
# ones.
NEWEST ?=

# Part of `make test-all` to run: SHARD=k/n is the k-th of n parts.
SHARD ?= 1/1

# File that lists the tests of `make test-newest`.
LIST ?= tests/newest.txt

# Values files of the overlays to generate.
VALUES ?= $(wildcard deploy/k8s/values/*.yaml)

# Number of random histories of `make lives`.
LIVES ?= 3000

# Number of files of `make verifications`.
VERIFICATIONS ?= 1000

# Command that renders the Kubernetes overlays.
KUSTOMIZE ?= $(if $(shell command -v kubectl),kubectl kustomize,kustomize build)
# Environment of checkov, separate because it pins a hundred packages.
CHECKOV := .venv-checkov
# Environments of clients that tests run, separate because their requirements conflict with
# Atelier's.
LITELLM := .venv-litellm
AIPERF := .venv-aiperf
# Environment of Helm, which renders the chart.
HELM := .venv-helm
NODE := tests/clients/node
# Formatter and linter of the pages' JavaScript, CSS and HTML.
BIOME := $(NODE)/node_modules/.bin/biome
# Run a program with arguments, if it is installed.
optional = @if command -v $(1) >/dev/null; then set -x; $(1) $(2); else echo "$(1) is not installed: skipped"; fi

# Some machines set this variable; every process would then compile all its modules again.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
BIN := $(VENV)/bin
# Modules are compiled on first import, because most are never imported.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# uv installs locks several times as fast as pip. pip is the fallback, because proxies and mirrors
# may be configured for pip only.
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python
RAN := $(VENV)/.ran
GATE = $(BIN)/python -m tests.gate
INSTALLED := $(RAN)-install-$(ACCELERATOR)$(if $(NEWEST),-newest)
CHOSEN := $(VENV)/.chosen
LOCKED := --no-deps --require-hashes --only-binary :all: --requirement $(CHOSEN)

# Install the requirements of an extra of pyproject.toml: tested versions, or the newest (without
# those of the second argument).
ifdef NEWEST
packages = $(PIP) --upgrade --upgrade-strategy eager --editable '.[$(1)]' $(2)
else
packages = @$(BIN)/python -m tools.packages $(1) > $(CHOSEN) && \
	{ $(UV) $(LOCKED) 2>/dev/null || $(PIP) $(LOCKED); } && \
	$(PIP) --no-deps --no-build-isolation --editable . || { \
	echo "pip could not install the tested versions, for the reason above. They are for Linux on"; \
	echo "x86-64 and 64-bit ARM, tpu for x86-64; make $(MAKECMDGOALS) NEWEST=1 takes what pip finds."; \
	exit 1; }
endif

.PHONY: install demo check test test-all nightly test-changed mutants budget clients clients-nightly test-newest newest fresh lint lint-deploy format docs wheel openapi reference rules overlays helm-values chart dashboards \
  gpu gpu-pack locks lives verifications chaos images-check clean

install: $(INSTALLED) ## .venv with the `atelier` command; ACCELERATOR=cuda or tpu on machines with an accelerator; NEWEST=1

demo: $(INSTALLED) ## the whole system with the demo models, and a first image
	@$(BIN)/python -m deploy.local.demo $(ARGS)

check: lint ## style, types, and the tests that need no compilation, process or browser
	$(GATE) check $(ARGS)

test: $(RAN)-test clients ## the gate: each guarantee is tested once; a quarter of an hour on two cores
	$(GATE) test $(ARGS)

test-all: $(RAN)-test clients clients-nightly ## all tests, in hours; SHARD=k/6 for a part; results are written to docs/design/nightly.md
	$(GATE) all --shard $(SHARD) $(ARGS)

nightly: lint-deploy test-all ## test-all in one run, checkov, the newest packages on newer Pythons, the mutants
	$(MAKE) test-newest PYTHON="$$($(BIN)/python tests/pythons.py 3.12)" LIST=tests/newest_short.txt
	$(MAKE) test-newest PYTHON="$$($(BIN)/python tests/pythons.py 3.13)"
	$(MAKE) mutants

test-changed: $(RAN)-test ## changed test files, five times, three of these on a busy machine
	$(BIN)/python -m tests.gate.changed $(ARGS)

mutants: $(RAN)-test ## small faults, one at a time, and the tests that detect them; can be resumed
	$(BIN)/python -m tests.mutants $(ARGS)

budget: ## tests/budget.json from the CPU times of the last `make test`
	$(BIN)/python -m tests.gate.budget

test-newest: newest ## the tests of LIST with the newest packages: make test-newest PYTHON=python3.13
	$(MAKE) test-all VENV=.venv-$(notdir $(PYTHON)) NEWEST=1 ARGS="@$(LIST) $(ARGS)"

newest: # environment of test-newest
	$(MAKE) fresh VENV=.venv-$(notdir $(PYTHON))
	$(MAKE) .venv-$(notdir $(PYTHON))/.ran-test VENV=.venv-$(notdir $(PYTHON)) NEWEST=1

fresh: # removes an environment of another Python or pyproject.toml
	@now="$$($(PYTHON) -c 'import sys; print(sys.base_prefix, sys.version)' && cksum pyproject.toml)" && \
	if [ "$$(cat $(VENV)/.of 2>/dev/null)" != "$$now" ]; then \
		rm -rf $(VENV) && mkdir -p $(VENV) && echo "$$now" > $(VENV)/.of; fi

clients: $(HELM)/.ran $(NODE)/node_modules/.ran # third-party programs that the gate's tests run

clients-nightly: $(LITELLM)/.ran $(AIPERF)/.ran # those that only the nightly tests run

lint: $(RAN)-test $(NODE)/node_modules/.ran ## style, formatting and types, without changing files
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(call optional,$(BIOME),check --error-on-warnings)
	$(call optional,luacheck,--quiet service)
	$(BIN)/mypy

lint-deploy: $(CHECKOV)/.ran $(HELM)/.ran $(RAN)-test ## checkov on the Kubernetes overlays and the chart; requires kubectl, or kustomize 5
	@rm -rf build/k8s && mkdir -p build/k8s
	@for overlay in deploy/k8s/overlays/*; do \
		$(KUSTOMIZE) $$overlay > build/k8s/$$(basename $$overlay).yaml || exit 1; done
	@for redis in pod sentinel; do $(BIN)/python -m tests.deploy.k8s.values | \
		$(HELM)/bin/helm template atelier deploy/helm/atelier --namespace pictures --values - \
		--set site.project=P --set site.region=R --set redis=$$redis \
		> build/k8s/chart-$$redis.yaml || exit 1; done
	$(CHECKOV)/bin/checkov --config-file deploy/k8s/checkov.yaml

format: $(RAN)-test $(NODE)/node_modules/.ran ## format code, and fix what linters can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(call optional,$(BIOME),check --write)

wheel: $(INSTALLED) ## dist/: the wheel, with all modules below the import name `atelier`
	@mkdir -p dist && rm -f dist/*.whl
	$(BIN)/python -m pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir dist .

openapi: $(INSTALLED) ## openapi.yaml from the code
	$(BIN)/python -m service.openapi > openapi.yaml

chaos: $(RAN)-test ## ten minutes of killing a whole system's processes; `make chaos ARGS="--minutes 60 --seed 7"`
	@JAX_PLATFORMS=cpu $(BIN)/python -m tests.chaos $(ARGS)

docs: $(RAN)-docs ## the documentation as a site in build/site; links are checked, warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

reference: $(INSTALLED) ## the reference pages of the documentation, from the code
	$(BIN)/python -m tools.reference

rules: $(INSTALLED) ## deploy/prometheus/kubernetes/rules.yaml from deploy/prometheus/rules
	$(BIN)/python -m tools.rules > deploy/prometheus/kubernetes/rules.yaml

overlays: $(INSTALLED) ## deploy/k8s/overlays from deploy/k8s/values; `make overlays VALUES=my.yaml`
	@JAX_PLATFORMS=cpu $(BIN)/python -m tools.cluster $(VALUES)

helm-values: $(INSTALLED) ## values for the chart, with every objective_s: make --silent helm-values VALUES=my.yaml
	@JAX_PLATFORMS=cpu $(BIN)/python -m tools.cluster --helm $(VALUES)

chart: $(INSTALLED) ## the generated files of deploy/helm, from deploy/k8s
	$(BIN)/python -m tools.cluster.chart

dashboards: $(INSTALLED) ## deploy/grafana/dashboards from the code
	$(BIN)/python -m tools.dashboards

gpu: ## on a machine with a GPU, JAX and torch: all checks that require a GPU, in pieces of 9 minutes
	$(PYTHON) -m lab.bench.gpu $(ARGS)

gpu-pack: $(RAN)-test ## build/gpu.tar.gz: the project and the wheels that such a machine lacks, at most 64 MiB
	$(BIN)/python -m lab.bench.gpu.wheels $(ARGS)
	$(BIN)/python -m lab.bench.gpu.pack --archive build/gpu.tar.gz

lives: $(RAN)-test ## a long search for a history of jobs that violates the queue's invariants (LIVES=3000 histories)
	LIVES=$(LIVES) $(BIN)/python -m pytest tests/service/jobs/model/test_state_machine.py --timeout 0 $(ARGS)

verifications: $(RAN)-test ## outputs of the demo models verified under load (VERIFICATIONS=1000 files), minutes
	VERIFICATIONS=$(VERIFICATIONS) $(BIN)/python -m pytest tests/e2e/test_verify.py -k many -rP $(ARGS)

locks: $(INSTALLED) ## all locks, of install and images: the newest versions that pyproject.toml allows; ARGS=--keep: only for new packages
	$(BIN)/python -m tools.locks $(ARGS)

images-check: $(RAN)-test ## build the images and start them with Docker Compose, minutes; ARGS="-k front_end" for one test
	$(BIN)/python -m pytest tests/deploy/docker/test_images.py $(ARGS)

clean: ## remove built files and environments
	rm -rf $(VENV) .venv-python* $(CHECKOV) $(LITELLM) $(AIPERF) $(HELM) $(NODE)/node_modules .atelier build dist *.egg-info

$(RAN)-python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "Atelier needs Python 3.11, 3.12 or 3.13; \`$(PYTHON)\` is $$($(PYTHON) --version 2>&1)."; \
		echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip --version >/dev/null || { \
		echo "Python's venv module is missing; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@$(PIP) uv==0.13.9 2>/dev/null || true
	@touch $@

$(INSTALLED): pyproject.toml deploy/packages.lock $(RAN)-python
	@rm -f $(RAN)-install-*
	$(call packages,$(ACCELERATOR))
	@touch $@

$(CHECKOV)/.ran: $(RAN)-python
	@$(PYTHON) -m venv $(CHECKOV)
	$(CHECKOV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile checkov==3.3.30
	@touch $@

$(LITELLM)/.ran $(AIPERF)/.ran $(HELM)/.ran: .venv-%/.ran: tests/clients/%.txt | $(RAN)-python
	@$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --requirement $<
	@touch $@

$(NODE)/node_modules/.ran: $(NODE)/package-lock.json
	@if command -v npm >/dev/null; then npm ci --prefix $(NODE) --ignore-scripts --no-audit --no-fund --silent; \
	else echo "npm is not here: the tests of its client are skipped"; mkdir -p $(@D); fi
	@touch $@

$(RAN)-train: $(INSTALLED)
	$(call packages,train)
	@touch $@

$(RAN)-docs: $(INSTALLED)
	$(call packages,docs)
	@touch $@

$(RAN)-load: $(INSTALLED)
	$(call packages,load)
	@touch $@

$(RAN)-test: $(INSTALLED)
	$(PIP) $(TORCH)
	$(call packages,test,$(TORCH))
	@touch $@
