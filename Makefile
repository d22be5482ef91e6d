# One entry for everything: `make help`. Needs python3 (3.11 or newer) and make, nothing else.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
HERE   := $(abspath $(BIN))
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo up adversary control-plane kubernetes-record differential test test-cluster test-fast test-long test-real coverage chaos docs house lint prose types imports fmt lock lock-engines test-engines table images manifest wheel krew screenshots sbom kind-up k3d-up bench bench-matcher bench-queue bench-review bench-view bench-window bench-replay bench-jobs bench-resync bench-row bench-sync bench-latency bench-throughput soak bench-retained bench-durations slurm-cases clean sim

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

# Images forbid bytecode. Without it, each of the many processes of a test run or of the demo compiles
# all that it imports. That is half the processor time of its start.
unexport PYTHONDONTWRITEBYTECODE

# Versions and hashes come from lock files. Both projects are installed as links to here. What the
# demo needs comes first. The tools of development are a third of the download and come later.
# Each lock is also its own constraint. A package may require coverage[toml], and pip takes that for another name
# than coverage: without the constraint it takes the newest release, which has no hash here.
PIP  := $(BIN)/python -m pip --quiet --disable-pip-version-check
DEMO := $(VENV)/.installed-demo

PROJECTS := pyproject.toml localcluster/pyproject.toml fluxion/pyproject.toml devtools/pyproject.toml
$(DEMO): requirements/demo.lock $(PROJECTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing $$(grep -c == requirements/demo.lock) packages into $(VENV) (once; a minute or two) ..."
	@$(BIN)/python requirements/install_lock.py requirements/demo.lock
	@$(PIP) install --no-deps --no-build-isolation -e localcluster -e . -e fluxion -e devtools
	@touch $@

$(STAMP): $(DEMO) requirements.lock
	@echo "installing $$(grep -c == requirements.lock) packages with the tools of development ..."
	@$(BIN)/python requirements/install_lock.py requirements.lock
	@touch $@

demo: $(DEMO) ## The whole system at work: database, cluster, webhook, controller, workers
	@$(BIN)/fluxqueue demo

up: $(DEMO) ## The same parts in the foreground, for kubectl and psql by hand
	@$(BIN)/fluxqueue up

SEED ?= 1
JOBS ?= 200
NODES ?= 32
POLICY ?= all
sim: $(if $(OUT),$(STAMP),$(DEMO)) ## The queue on virtual time: SEED= JOBS= NODES= POLICY= SWF=file OUT=gantt.svg
	$(BIN)/fluxqueue sim --seed $(SEED) --jobs $(JOBS) --nodes $(NODES) --policy $(POLICY) \
	    $(if $(SWF),--swf "$(SWF)") $(if $(OUT),--out "$(OUT)") $(ARGS)

# More processes than cores: most tests wait, those of localcluster nine tenths of their time.
# tests/support/order.py says which of the product's run together.
PYTEST         = $(BIN)/python -m pytest -n 5 --dist loadgroup --no-loadscope-reorder
PYTEST_CLUSTER = cd localcluster && $(HERE)/python -m pytest -n 8 --dist worksteal

test: test-cluster $(STAMP) ## The tests of both projects, except the long ones
	@echo "part 2 of 2: fluxqueue"
	$(PYTEST) -m "not long"

test-cluster: $(STAMP) ## Of these, localcluster's: against the recordings of a real API server, too
	@echo "part 1 of 2: localcluster"
	$(PYTEST_CLUSTER) -m "not long"

# A long test that failed beside others runs once more by itself. A fault fails again, and a busy
# machine does not. The first summary names such tests in any case.
define long_tests
	($(1)) || (echo "the tests that failed run again, by themselves"; \
	    $(1) -n 1 --last-failed --last-failed-no-failures none)
endef

test-long: $(STAMP) ## The others: chaos, upgrades, images, replicas ...; and all examples of the property tests
	@echo "part 1 of 3: localcluster"
	$(call long_tests,$(PYTEST_CLUSTER) -m long)
	@echo "part 2 of 3: fluxqueue"
	$(call long_tests,export FLUXQUEUE_TEST_ALL_EXAMPLES=1; $(PYTEST) -m long)
	@echo "part 3 of 3: all examples of the property tests"
	FLUXQUEUE_TEST_ALL_EXAMPLES=1 $(PYTEST) tests/property tests/unit -m "not long"

test-fast: $(STAMP) ## Unit and property tests only
	cd localcluster && $(HERE)/python -m pytest tests/unit tests/property
	$(BIN)/python -m pytest tests/unit tests/property

# The floor is fail_under in pyproject.toml. End-to-end tests and localcluster's are not counted.
coverage: $(STAMP) ## Branch coverage of unit, property and integration tests, with its floor
	$(PYTEST) -m "not long" --cov --cov-report=html --cov-fail-under=0 tests/unit tests/property tests/integration
	$(BIN)/coverage report --skip-covered --sort=cover

test-real: $(STAMP) ## Tests on a real control plane, under the chart's rights: KUBEBUILDER_ASSETS=folder GATES=groups
	@: $${KUBEBUILDER_ASSETS:?name the folder with etcd, kube-apiserver and the others}
	FLUXQUEUE_E2E_RBAC=chart FLUXQUEUE_E2E_GATES=$(GATES) $(BIN)/python -m pytest -m real_cluster

# Its last line can be exported: export $$(make -s control-plane VERSION=1.37.2)
control-plane: ## Build a real control plane of any version from its Go modules: VERSION=1.37.2
	@$(PYTHON) tests/control_plane_build/build.py "$(or $(VERSION),1.37)"

# A unit test compares the record with what we name and with the table beside it.
kubernetes-record: $(STAMP) ## Record gates, kinds and fields of a new minor of Kubernetes: KUBEBUILDER_ASSETS=folder
	@: $${KUBEBUILDER_ASSETS:?name the folder with etcd, kube-apiserver and the others}
	$(BIN)/python -m tests.support.kubernetes_record

# PODS=n, SEED=n. The embedded scheduler's smaller comparison is one of the tests of `make test`.
differential: $(STAMP) ## What we place is bound by the real kube-scheduler: KUBEBUILDER_ASSETS=folder PODS= SEED=
	@: $${KUBEBUILDER_ASSETS:?name the folder with etcd, kube-apiserver and the others}
	FLUXQUEUE_DIFFERENTIAL_PODS=$(PODS) FLUXQUEUE_DIFFERENTIAL_SEED=$(SEED) \
	    $(BIN)/python -m pytest -s -m real_cluster tests/differential

# SEED=n repeats a run's faults, DURATION=s bounds how long they go on.
chaos: $(STAMP) ## Processes, database, API server and nodes fail at random; everything ends once
	FLUXQUEUE_CHAOS_SEED=$(SEED) FLUXQUEUE_CHAOS_DURATION_S=$(or $(DURATION),120) \
	    timeout --signal=INT --kill-after=15 285 $(BIN)/python -m pytest -s tests/chaos

# N hostile inputs of each kind. ARGS: --lives, --cluster-lives, --set-back, --cancelled, --size (python -m benchmarks.adversary -h).
adversary: $(STAMP) ## What tenants can do to the queue, as a table: N= KUBEBUILDER_ASSETS=folder
	FLUXQUEUE_E2E_RBAC=chart $(BIN)/python -m benchmarks.adversary $(if $(N),--inputs $(N)) $(ARGS)

lint: prose $(STAMP) ## ruff: rules and format; squawk: SQL of migrations; prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/squawk 'fluxqueue/db/sql/*.sql' 'migrations/sql/*.sql'

prose: ## Plain English: sentences, banned words, and which paths are not converted yet
	$(PYTHON) docs/prose.py

# ARGS: --update lowers the record, --list NAME shows what a figure counts.
house: ## The size of the project beside its record, which may only fall
	$(PYTHON) docs/house.py $(ARGS)

types: $(STAMP) ## mypy --strict
	cd localcluster && $(HERE)/mypy
	$(BIN)/mypy

imports: $(STAMP) ## The layers, as import-linter contracts
	cd localcluster && $(HERE)/lint-imports
	$(BIN)/lint-imports

fmt: $(STAMP) ## Format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The other locks follow requirements.lock: what is tested is what is shipped and shown.
OURS = $(foreach name,localcluster fluxqueue-devtools fluxqueue-fluxion fluxqueue-k8s,--no-emit-package $(name))
COMPILE = $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-header --quiet
IMAGE_COMPILE = $(COMPILE) --constraint requirements.lock

lock: $(STAMP) ## Resolve all versions anew into requirements.lock and the images' lock files
	$(COMPILE) $(PROJECTS) --all-extras --group build $(OURS) --output-file requirements.lock
	$(IMAGE_COMPILE) $(PROJECTS) --extra embedded --group demo $(OURS) --output-file requirements/demo.lock
	$(IMAGE_COMPILE) pyproject.toml --output-file requirements/cli.lock
	$(IMAGE_COMPILE) pyproject.toml --extra server --output-file requirements/runtime.lock
	$(IMAGE_COMPILE) --group webhook --output-file requirements/webhook.lock
	$(IMAGE_COMPILE) --group build --output-file requirements/build.lock
	$(IMAGE_COMPILE) --group docs --output-file requirements/docs.lock
	$(IMAGE_COMPILE) pyproject.toml --group parsl --output-file requirements/parsl.lock
	$(IMAGE_COMPILE) localcluster/pyproject.toml --output-file localcluster/requirements.lock

# Each engine has an environment of its own: their requirements conflict. The newest releases are resolved by
# `make lock-engines`. Those of our adapters also have what our client needs.
ENGINES = clients airflow dagster parsl luigi prefect snakemake toil metaflow kubeflow adapters
OF_ADAPTERS = airflow adapters
ENGINE_STAMPS = $(ENGINES:%=$(VENV)/engines/%/.installed)
lock-engines: $(STAMP) ## Resolve the versions of the engines anew
	for engine in $(ENGINES); do \
	    case " $(OF_ADAPTERS) " in *" $$engine "*) ours=pyproject.toml;; *) ours=;; esac; \
	    $(COMPILE) $$ours --group engines-$$engine --output-file requirements/engines-$$engine.lock || exit 1; done

$(VENV)/engines/%/.installed: requirements/engines-%.lock
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --quiet --disable-pip-version-check install --require-hashes -r $< -c $<
	@touch $@

test-engines: $(STAMP) $(ENGINE_STAMPS) ## Workflow engines and clients in a queue; writes docs/user/engines.md
	FLUXQUEUE_ENGINES_TABLE=1 FLUXQUEUE_ENGINES="$(ENGINES)" $(BIN)/python -m pytest tests/engines $(ARGS)

table: $(STAMP) ## Write the types of localcluster anew from the OpenAPI of the supported Kubernetes
	$(BIN)/python localcluster/tools/make_types.py

SITE := $(VENV)/.docs
$(SITE)/.installed: requirements/docs.lock
	@$(PYTHON) -m venv $(SITE)
	@$(SITE)/bin/python -m pip --quiet --disable-pip-version-check install --require-hashes -r $< -c $<
	@touch $@

docs: $(SITE)/.installed ## The documentation as a site in dist/docs, with search; a warning fails
	$(SITE)/bin/sphinx-build --quiet --fail-on-warning --keep-going -d $(SITE)/doctrees docs dist/docs

# VERSION is the package's. Set REGISTRY and IMAGE_TOOL (podman, buildah) to change them.
VERSION     = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
REGISTRY   ?= ghcr.io/converged-computing
IMAGE_TOOL ?= docker
IMAGE_BUILD = $(IMAGE_TOOL) build $(IMAGE_OPTIONS) --build-arg VERSION=$(VERSION) \
    --build-arg REVISION=$(shell git rev-parse HEAD) \
    --build-arg SOURCE_DATE_EPOCH=$(shell git log -1 --format=%ct)

images: ## Build the images of fluxqueue, its webhook and localcluster (needs a Docker engine or the like)
	$(IMAGE_BUILD) --target fluxqueue --tag $(REGISTRY)/fluxqueue:$(VERSION) .
	$(IMAGE_BUILD) --target webhook --tag $(REGISTRY)/fluxqueue-webhook:$(VERSION) .
	$(IMAGE_BUILD) --tag $(REGISTRY)/localcluster:$(VERSION) localcluster

wheel: $(STAMP) ## Build the wheels of all projects into dist/
	SOURCE_DATE_EPOCH=$(shell git log -1 --format=%ct) $(PIP) wheel --no-index --no-deps \
	    --no-build-isolation --wheel-dir dist . ./localcluster ./fluxion ./devtools

manifest: $(STAMP) ## The chart as one manifest for kubectl apply --server-side, in dist/
	@mkdir -p dist
	$(BIN)/python chart/manifest.py > dist/fluxqueue-install.yaml

krew: wheel ## The krew plugin of the users' command line and its manifest, in dist/
	.ci/krew.py $(VERSION) dist

screenshots: $(STAMP) ## Take the pictures of the window for README and pages (needs Chromium)
	$(BIN)/python docs/screenshots.py

sbom: $(STAMP) ## The images' Python parts as CycloneDX files in dist/, without building them
	mkdir -p dist
	for image in runtime webhook; do \
	    $(BIN)/cyclonedx-py requirements requirements/$$image.lock --pyproject pyproject.toml \
	        --output-reproducible --output-format JSON --output-file dist/$$image.cdx.json; \
	done

kind-up: ## A kind cluster with these images and the chart, and the demo's Job in it
	.ci/quickstart kind

k3d-up: ## The same with k3d
	.ci/quickstart k3d

bench: bench-matcher bench-queue bench-review bench-latency ## All benchmarks, as tables

bench-matcher: $(STAMP) ## Match, fail, cancel, load: graphs up to 10,000 nodes
	$(BIN)/python -m benchmarks.matcher

bench-queue: $(STAMP) ## Decisions per second, deep queues, submission
	$(BIN)/python -m benchmarks.queue

bench-review: $(STAMP) ## What an answer to a PlacementReview costs: 4,000 nodes, 1,000 waiting
	$(BIN)/python -m benchmarks.review

bench-latency: $(STAMP) ## Submission to released pods on an idle embedded cluster
	$(BIN)/python -m benchmarks.latency

# ARGS may shorten it: --jobs, --gangs, --gang, --repeat, --only (python -m benchmarks.throughput -h).
bench-throughput: $(STAMP) ## What a Job costs, as ratios to Kubernetes alone: KUBEBUILDER_ASSETS=folder
	$(BIN)/python -m benchmarks.throughput $(if $(KUBEBUILDER_ASSETS),--assets "$(KUBEBUILDER_ASSETS)") $(ARGS)

bench-view: $(STAMP) ## The view server over 50,000 FluxJobs: first pages, memory
	$(BIN)/python -m benchmarks.view

bench-window: $(STAMP) ## The window on 10,000 nodes and 50,000 FluxJobs: first load, frames, memory (needs Chromium)
	$(BIN)/python -m benchmarks.window $(ARGS)

bench-replay: $(STAMP) ## The time machine on a day of 5,000 jobs: seconds of a processor, memory
	$(BIN)/python -m benchmarks.replay $(ARGS)

bench-durations: $(STAMP) ## What learned run times are worth on real logs, if ../shared/traces is there
	$(BIN)/python -m benchmarks.durations $(ARGS)

slurm-cases: $(STAMP) ## Recorded answers of a real sbatch beside ours: 0 are different in silence
	$(BIN)/python -m tests.support.slurm_cases $(ARGS)

bench-jobs: $(STAMP) ## What a user's commands take over 50,000 FluxJobs: first lines, memory
	$(BIN)/python -m benchmarks.jobs $(ARGS)

bench-resync: $(STAMP) ## 50,000 Jobs compared with their rows: an empty database, no difference, 5 %
	$(BIN)/python -m benchmarks.resync $(ARGS)

bench-row: $(STAMP) ## What it would cost to split the row of a FluxJob by its writers
	$(BIN)/python -m benchmarks.row_split $(ARGS)

bench-sync: $(STAMP) ## Updates of the graph against building it anew: up to 10,000 nodes, 100,000 unmanaged pods
	$(BIN)/python -m benchmarks.sync $(ARGS)

ENDED ?= 5000000
bench-retained: $(STAMP) ## What ended FluxJobs cost while they are kept: ENDED= (12 GB of disk as it is)
	$(BIN)/python -m benchmarks.retained --ended $(ENDED)

soak: $(STAMP) ## 20 min at the highest rate: does all level off? MINUTES= KUBEBUILDER_ASSETS=folder
	$(BIN)/python -m benchmarks.soak $(if $(KUBEBUILDER_ASSETS),--assets "$(KUBEBUILDER_ASSETS)") \
	    $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

clean: ## Remove what was built, installed and run here
	rm -rf $(VENV) .fluxqueue localcluster/.*_cache localcluster/.hypothesis .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
