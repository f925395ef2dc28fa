# make run: the demo. make test: everything. Both make their own environment on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := all,bench,docs,dev
STAMP := $(VENV)/.installed
RUNS ?= 5
BUSY ?= 0
AT_ONCE ?= 1
# Three test processes keep two cores busy: many tests wait for servers, browsers and processes.
WORKERS ?= 3
MEMORY := $(shell [ -w /dev/shm ] && [ "$$(df --output=avail -k /dev/shm | tail -1)" -gt 6000000 ] && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)

.PHONY: run test suite check serve bench docs examples sbom clean apt
run: $(STAMP)
	$(BIN)/blindsight demo

# At its end: what was skipped and why, and the slowest tests. SEED=7: in a random order.
# Tests write to memory where it is large enough: a vault's commits wait for the disk otherwise. Python keeps
# what it compiled, even where it is told not to: tests start many processes.
test: $(STAMP) apt check
	PYTHONDONTWRITEBYTECODE= $(MEMORY) $(BIN)/python -m pytest -p forked --workers $(WORKERS) -rs --durations=12 $(if $(SEED),-p randomly --randomly-seed=$(SEED))

# The suite again and again in fresh clones: make suite RUNS=5 BUSY=4 AT_ONCE=2
suite: $(STAMP) apt
	PYTHONDONTWRITEBYTECODE= $(MEMORY) $(BIN)/python -m benchmarks.suite --runs $(RUNS) --busy $(BUSY) --at-once $(AT_ONCE) --workers $(WORKERS) $(if $(SEED),--seed $(SEED))

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

serve: $(STAMP)
	$(BIN)/blindsight serve

bench: $(STAMP)
	$(BIN)/python -m benchmarks all

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

# What a release is made of, from what is installed: CycloneDX as JSON.
sbom: $(STAMP)
	$(BIN)/blindsight licences --sbom > sbom.json

# What the gallery shows under each example; and the README's picture, from the last demo.
examples: $(STAMP)
	for f in docs/examples/*.py; do $(BIN)/python $$f > $${f%.py}.txt || exit 1; done
	cp out/search.jpg docs/images/search.jpg

# PyTorch first and by its exact version, so that a CPU build is taken where there is one.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --progress-bar on -c constraints.txt torch==2.13.0
	$(BIN)/pip install --progress-bar on -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

# Real parts for the tests: a PostgreSQL server, Chromium; and two proxies, whose tests are skipped without
# them. Skipped where they are there already.
apt:
	@command -v chromium >/dev/null && { command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; } \
	|| { echo "installing PostgreSQL and Chromium for the tests"; \
	     SUDO=; [ "$$(id -u)" = 0 ] || SUDO=sudo; \
	     $$SUDO apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$SUDO apt-get install -y -qq --no-install-recommends postgresql chromium fonts-dejavu-core; }
	@command -v nginx >/dev/null && command -v caddy >/dev/null \
	|| { echo "installing nginx and Caddy for the tests"; \
	     SUDO=; [ "$$(id -u)" = 0 ] || SUDO=sudo; \
	     DEBIAN_FRONTEND=noninteractive $$SUDO apt-get install -y -qq --no-install-recommends nginx-light caddy \
	     || echo "nginx or Caddy could not be installed: their tests are skipped"; }

clean:
	rm -rf $(VENV) out site .pytest_cache .mypy_cache .ruff_cache
