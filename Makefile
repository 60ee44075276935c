# Everything runs inside .venv, which is made on first use. `make` builds; `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
EXTRAS := top,http,cluster,perf,test,dev
# Tests of code that starts no threads or processes that compete for cores: they run in one process per core. Three
# processes run all other tests, a file at a time. Those wait for daemons and timers a third of the time, so the tests
# of PURE run at the same time, at a low priority.
PURE := $(addprefix tests/,arch bindings config constraint executor gateway/chat gateway/cluster/test_simulation.py \
	metrics policy protocol session speculation)

# The tests start many processes. With this variable set, each of them would compile every module that it imports: a
# daemon's imports would take 2.1 s instead of 0.7, Ray's 6.8 s instead of 2.6 (AMD EPYC).
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := build
.PHONY: help venv build ext demo test test-deps portable check fuzz audit conversations differential perf gen size \
	clean distclean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 15

venv: $(READY) ## make .venv with UMA Serve in it (editable)

# --no-compile: Python compiles a module when it is first imported; compiling all took 33 of 126 s (2 cores, AMD EPYC)
$(READY): pyproject.toml setup.py native/PIN
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --disable-pip-version-check --no-compile -e '.[$(EXTRAS)]'
	touch $@

build: $(READY) ## build llama.cpp's libraries and the bindings, through the cache
	$(PY) native/build.py
	$(PY) setup.py -q build_ext --inplace

ext: $(READY) ## rebuild only what changed of the bindings and native/
	$(PY) setup.py -q build_ext --inplace

demo: $(READY) ## daemon on the embedded model, three clients at once, a chat over HTTP, clean stop
	$(PY) -m uma_ctl.demo

test: ext ## run the whole test suite
	status=0; pure=$$(mktemp); \
	nice -n 10 $(PY) -m pytest -o cache_dir=.pytest_cache/pure -n auto --dist worksteal $(PURE) >$$pure 2>&1 & \
	$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(addprefix --ignore=,$(PURE)) || status=1; \
	wait $$! || status=1; \
	cat $$pure; rm -f $$pure; exit $$status

test-deps: $(READY) ## install programs that some tests need (Debian packages; as root, or with sudo)
	$(PY) -m tests.tools install

portable: ext ## build one wheel for all x86-64 processors and run it on four emulated ones
	$(PY) -m tests.portable

check: ext ## lint, types, import rules, generated files up to date
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(PY) -m pytest -q tests/arch
	$(PY) -m bindings.generate --check

fuzz: ext ## long random input: protocol, request fields, answers under schemas, options, model files, memory limits
	UMA_FUZZ=full $(PY) -m pytest -q -m fuzz

audit: $(READY) ## look for known vulnerabilities in the HTTP gateway's dependencies (asks the package index)
	$(PY) -m tests.audit

conversations: ext ## compare logits after a cached beginning with those of full prefills, in 1,200 random chats
	UMA_CACHE_CONVERSATIONS=200 $(PY) -m pytest -q -s tests/cache/test_real.py

differential: ext ## build the pinned llama-server, record its replies for the tests, list the gateway's differences
	$(PY) -m tests.gateway.differential

perf: ext ## measure beside llama-server, and judge each promise; writes perf/out
	$(PY) -m perf accept

gen: ext ## regenerate the bindings' list and the reference tables in docs/
	$(PY) -m bindings.generate
	$(PY) docs/generate.py

size: ## lines per part
	@for d in uma_core uma_ctl uma_gateway native bindings tests perf; do \
	  printf '%-10s %6d lines\n' $$d $$(git ls-files $$d | grep -E '\.(py|c|h)$$' | xargs cat | wc -l); done

clean: ## remove what builds made in the tree; the cache outside it stays
	rm -rf build dist *.egg-info uma_core/lib uma_gateway/lib uma_core/_llama*.so native/headers

distclean: clean ## clean, and remove .venv
	rm -rf $(VENV)
