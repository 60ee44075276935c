# Everything runs inside .venv, which is made on first use. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
EXTRAS := top,http,cluster,perf,test,dev
# Tests of code that starts no threads or processes which compete for cores: one process for each core runs them. Three
# processes run the others, a file at a time. These wait for daemons and timers a third of their time, so the first part
# runs beside them, and takes what they leave.
PURE := $(addprefix tests/,arch bindings cluster/test_simulation.py config constraint executor gateway/chat metrics \
	policy protocol session speculation)

# The tests start many processes. With this variable set, each of them would compile every module that it imports: a
# daemon's imports would take 2.1 s instead of 0.7, Ray's 6.8 s instead of 2.6 (AMD EPYC).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv build ext demo test test-deps portable check fuzz audit conversations differential perf gen size clean distclean

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

test-deps: $(READY) ## install what some tests run beside the product (Debian packages; as root, or with sudo)
	$(PY) -m tests.tools install

portable: ext ## one wheel for every x86-64 processor, run on emulated ones of four generations
	$(PY) -m tests.portable

check: ext ## lint, types, import rules, generated files up to date
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(PY) -m pytest -q tests/arch
	$(PY) -m bindings.generate --check

fuzz: ext ## long random input: the protocol, fields of requests, answers under schemas, options, damaged model files, limits of memory
	UMA_FUZZ=full $(PY) -m pytest -q -m fuzz

audit: $(READY) ## look for known vulnerabilities in what the HTTP gateway needs (asks the package index)
	$(PY) -m tests.audit

conversations: ext ## 1,200 random chats: logits after a cached beginning against those of full reads
	UMA_CACHE_CONVERSATIONS=200 $(PY) -m pytest -q -s tests/cache/test_real.py

differential: ext ## build the pinned llama-server, record its replies for the tests, say what the gateway does differently
	$(PY) -m tests.gateway.differential

perf: ext ## measure; writes perf/out
	$(PY) -m perf

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
