# make serve   set up and serve on 127.0.0.1:8080      make test    the tests
# make lint    ruff, mypy, import-linter               make bench   quick measurements
# make test-services   the tests with a real Redis, nginx, Chromium, Node and Java, which must be installed
# make test-release   what guards a release and not every change; takes the same services, root, 15 GB and hours.
#                Its parts, in their order:
#   make test-long     the tests of many seconds each, of benchmarks and of the experiments in research/
#   make docs          every block of the pages; PAGES="docs/serving.md …" runs those alone
#   make fuzz          what is read from outside, fed with what makes no sense; EXAMPLES=100000 for longer
#   make test-cpus     the tests that compare numbers, as older CPUs would run them; MACHINES="sse4 avx2" names some
#   make test-exports  exports and clients with other versions of libraries, which are installed below build
#   make test-containers   builds the images and tries them in Compose
# make release   wheels, bill of materials, audit, checksums and images of the commit, in build/release; AUDIT= goes
#                without the audit
# make reference   writes docs/reference from the code

PYTHON ?= python3
PROCESSES ?= 2
VENV := .venv
BIN := $(VENV)/bin
TRAINING := offline,parquet,faiss,onnx,evaluation,finetuning
SERVICE := faiss,redis,pgvector
DISTRIBUTIONS := --editable ./transforms --editable './training[$(TRAINING)]' --editable './service[$(SERVICE)]'
DEVELOPMENT := --requirement requirements-dev.txt --editable './transforms[sklearn]' \
 --editable './training[$(TRAINING),lora,ray]' --editable './service[$(SERVICE),milvus,ray-serve]'
DEFINITIONS := VERSION constraints.txt $(wildcard */pyproject.toml)
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

# Of 25,000 modules a server and its processes import 5,000: the others are compiled when they are first imported.
COMPILE := $(BIN)/python -P -W ignore -m lathe.service.processes.precompile

# Processes are started by the hundred, and none should compile again what another one has.
unexport PYTHONDONTWRITEBYTECODE

TOOLS := redis-server nginx chromium node npm java curl
NEED_SERVICES = @for tool in $(TOOLS); do PATH="$$PATH:/usr/sbin" command -v $$tool >/dev/null || \
 { echo "make $@ takes $$tool: apt-get install redis-server nginx chromium nodejs npm default-jdk-headless curl"; exit 2; }; done

# A client in the tests; it has no dependencies.
OPENAI_FOR_NODE = npm install --silent --no-audit --no-fund --prefix $(VENV)/node openai@7.57.0

PYTEST := OMP_NUM_THREADS=1 PATH="$$PATH:/usr/sbin" $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist worksteal

# To collect the tests of all other files takes each process ten seconds.
SERVICE_TESTS = $$(grep -rl 'mark\.services' tests --include='*.py' | sed 's,/conftest.py$$,,' | sort)

.PHONY: serve test test-services test-release test-long docs fuzz test-cpus test-exports test-containers mutants lint \
 bench reference release starters clean

serve: $(VENV)/serve.stamp
	@exec $(BIN)/lathe serve

test: $(VENV)/dev.stamp
	$(PYTEST)

test-services: $(VENV)/dev.stamp
	$(NEED_SERVICES)
	$(OPENAI_FOR_NODE)
	$(PYTEST) -m "services and not release" $(SERVICE_TESTS)

test-release: test-long docs fuzz test-cpus test-exports test-containers

test-long: $(VENV)/dev.stamp
	$(NEED_SERVICES)
	$(OPENAI_FOR_NODE)
	$(PYTEST) -m release
	$(PYTEST) -m "" tests/benchmarks research/tests

docs: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 PATH="$$PATH:/usr/sbin" $(BIN)/python -m tests.docs $(PAGES)

fuzz: $(VENV)/dev.stamp
	FUZZ_EXAMPLES=$(or $(EXAMPLES),10000) $(PYTEST) tests/behaviour/hostile/test_fuzz.py --timeout 0

test-cpus: $(VENV)/dev.stamp
	@$(BIN)/python -m tests.cpus --processes $(PROCESSES) $(MACHINES)

# Its files are not called test_*.py, so that no other target collects them.
test-exports: $(VENV)/dev.stamp
	$(PYTEST) --timeout 0 tests/exports/check_*.py
	$(BIN)/python -m tests.exports.frameworks

# Figures to build/bench/containers.json; TRIALS="--trial 'worker killed'" runs that one alone.
test-containers: $(VENV)/dev.stamp
	$(BIN)/python -m tests.containers $(TRIALS)

# Changes the code of FILE a piece at a time, and lists the changes that TESTS do not notice. mutmut wants one tree with
# the import paths, so the three distributions are copied into one: make mutants FILE=lathe/transforms/vectors.py TESTS=…
mutants: $(VENV)/dev.stamp
	@test -n "$(FILE)" -a -n "$(TESTS)" || { echo "usage: make mutants FILE=lathe/… TESTS=tests/…"; exit 2; }
	$(BIN)/pip install --quiet mutmut
	rm -rf build/mutants && mkdir -p build/mutants/lathe
	cp -r transforms/lathe/transforms training/lathe/training service/lathe/service build/mutants/lathe
	cp -r tests benchmarks docs README.md VERSION pyproject.toml build/mutants
	printf '\n[tool.mutmut]\nsource_paths = ["%s"]\npytest_add_cli_args_test_selection = ["%s"]\nalso_copy = ["lathe", "benchmarks", "docs", "README.md", "VERSION"]\n' \
	 $(FILE) $(TESTS) >> build/mutants/pyproject.toml
	cd build/mutants && OMP_NUM_THREADS=1 $(abspath $(BIN))/python -m mutmut run --max-children $(PROCESSES)
	cd build/mutants && $(abspath $(BIN))/python -m mutmut results

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks.fit --quick --out build/bench
	$(BIN)/python -m benchmarks.starters --quick --out build/bench
	$(BIN)/python -m benchmarks.index --quick --out build/bench

reference: $(VENV)/dev.stamp
	$(BIN)/python -m docs.generate

release:
	PYTHON="$(PYTHON)" TRAINING="$(TRAINING)" SERVICE="$(SERVICE)" .ci/release

# Fits the chains that ship with Lathe again; SENTENCES is a folder of general sentences.
starters: $(VENV)/serve.stamp
	@test -d "$(SENTENCES)" || { echo "usage: make starters SENTENCES=FOLDER"; exit 2; }
	rm -rf build/starters service/lathe/service/chains/starter_chains
	LATHE_DTYPE=float32 LATHE_HOME=build/starters $(BIN)/lathe fit --name debias --steps r2 --source "$(SENTENCES)"
	LATHE_DTYPE=float32 LATHE_HOME=build/starters $(BIN)/lathe fit --name compact --steps r2,geopres:128,nested=true --serve-dimensions --source "$(SENTENCES)"
	LATHE_DTYPE=float32 LATHE_HOME=build/starters $(BIN)/lathe fit --name codes48 --bytes 48 --source "$(SENTENCES)"
	mkdir -p service/lathe/service/chains/starter_chains
	cp -r build/starters/chains/* build/starters/size_routes.json service/lathe/service/chains/starter_chains/
	find service/lathe/service/chains/starter_chains -name '.*' -type f -delete

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Lathe needs Python 3.11 or newer (set PYTHON=)"; exit 2; }
	$(PYTHON) -m venv $(VENV)

NO_GRAPHS := Graphs of float vectors will be those of FAISS: hnswlib, which is faster, needs a C++ compiler and Python's\
 headers. Install those and run: make clean

$(VENV)/serve.stamp: $(BIN)/python $(DEFINITIONS)
	@echo "Installing Lathe into $(VENV); this takes a few minutes the first time."
	$(PIP_INSTALL) $(DISTRIBUTIONS)
	@$(PIP_INSTALL) --editable './service[index]' >/dev/null 2>&1 || echo "$(NO_GRAPHS)"
	@$(COMPILE)
	@touch $@

# All at once: to find the versions takes pip half a minute.
$(VENV)/dev.stamp: $(BIN)/python $(DEFINITIONS) requirements-dev.txt
	@echo "Installing Lathe and what its tests take into $(VENV); this takes a few minutes the first time."
	@$(PIP_INSTALL) $(DEVELOPMENT) hnswlib || { $(PIP_INSTALL) $(DEVELOPMENT) && echo "$(NO_GRAPHS)"; }
	@$(COMPILE)
	@touch $(VENV)/serve.stamp $@

clean:
	rm -rf $(VENV) build
