# Every target makes the virtual environment it needs; `make help` lists the targets.
# The work is done by scripts/, which can be called without make as well.
# Options: PYTHON=/path/to/python3, ARGS="-k name -x" for pytest (test, quick, coverage).

.DEFAULT_GOAL := help
SHELL := /bin/bash
run := .venv/bin/python
export PYTHONUNBUFFERED := 1
# Compiled files are kept: the tests start Python some thousand times.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

.PHONY: venv
venv: ## .venv with everything for development (the others make it too)
	@scripts/venv .venv dev

.PHONY: demo
demo: ## holdfast at work in the terminal
	@scripts/venv .venv-demo none && .venv-demo/bin/holdfast demo

.PHONY: test
test: venv ## the suite with real servers (what takes long: a part); the library on every Python
	@$(run) scripts/run_tests.py all $(ARGS)

.PHONY: quick
quick: venv ## the suite without servers, and without what takes minutes
	@$(run) scripts/run_tests.py quick $(ARGS)

.PHONY: check
check: venv ## ruff, mypy --strict, pyright
	@scripts/check

.PHONY: servers
servers: venv ## run test servers: KINDS="redis etcd" (none: list the kinds)
	@$(run) -m tests.servers $(if $(KINDS),up $(KINDS),list)

.PHONY: mutants
mutants: venv ## plant known bugs; show that the suite catches each
	@$(run) -m tests.mutants $(ARGS)

.PHONY: explore
explore: venv ## explore schedules of the core: SEED= SCHEDULES= REPLAY=, or REPLAY=name
	@$(run) -m tests.explorer $(if $(SEED),--seed $(SEED)) $(if $(SCHEDULES),--schedules $(SCHEDULES)) $(if $(REPLAY),--replay $(REPLAY)) $(ARGS)

.PHONY: soak
soak: venv ## ten minutes of random faults: BACKEND=redis (or a URL) SECONDS=600 HOLDS= SEED=
	@$(run) -m tests.stress $(or $(BACKEND),redis) --soak --seconds $(or $(SECONDS),600) $(if $(HOLDS),--holds $(HOLDS)) $(if $(SEED),--seed $(SEED)) --record bench/results $(ARGS); \
	 status=$$?; $(run) -m bench --page; exit $$status

.PHONY: kills
kills: venv ## kill -9, 200 times inside each tool (multi, once, ...): BACKEND=redis or etcd
	@$(run) -m tests.stress.kills $(or $(BACKEND),redis) --record bench/results $(ARGS); \
	 status=$$?; $(run) -m bench --page; exit $$status

.PHONY: coverage
coverage: venv ## the quick suite with branch coverage; pages in build/coverage
	@scripts/coverage $(ARGS)

.PHONY: bench
bench: venv ## measure
	@$(run) -m bench $(ARGS)

.PHONY: docs
docs: ## the documentation site, in build/site: offline, strict, no dead links
	@scripts/venv .venv-docs docs && .venv-docs/bin/python scripts/docs_site.py
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --clean --config-file build/docs.yml >build/docs.log 2>&1 \
	 || { grep -v ^INFO build/docs.log; exit 1; }
	@.venv-docs/bin/python scripts/docs_site.py --check
	@echo "open it in a browser: file://$(CURDIR)/build/site/index.html"

.PHONY: docs-map
docs-map: venv ## docs/requirements.md, and the tables of README and backends, anew
	@$(run) scripts/requirements_map.py --write
	@$(run) -m bench.pages --write

.PHONY: docs-matrix
docs-matrix: venv ## docs/reference/matrix.md anew, from the last HOLDFAST_EVERYTHING=1 make test
	@$(run) scripts/matrix.py --write

.PHONY: clean
clean: ## remove the virtual environments and everything generated
	@rm -rf .venv .venv-* build dist .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find src tests bench examples scripts -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
