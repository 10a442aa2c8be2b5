# Two commands are enough: `make demo` and `make test`. Each sets up what it needs.

PYTHON ?= python3
VENV ?= .venv
DEMO_VENV ?= .venv-demo
DEMO ?=
TEST_PROCESSES ?= 2
LONGEST_TEST ?=
PART ?=
OPTIONS ?=
PACKAGES := $(wildcard mithril-*/pyproject.toml)

.PHONY: demo test test-all check format wheels startup bench bench-jax bench-torch bench-mlx clean

# The core alone: trains a small GPT on simulated devices. `make demo DEMO="--mesh data=4"`
demo: $(DEMO_VENV)/.ready
	$(DEMO_VENV)/bin/mithril demo $(DEMO)

# The quick profile of tests/profiles.py, minutes; `python -m pytest` runs one test after another.
# A process takes tests from the other one's end when it has done its own, so that those which share
# a pool of workers or a compiled program stay together. `make test OPTIONS="-x tests/torch"`; with
# LONGEST_TEST=10 a run fails that has a test of more than ten seconds on an idle machine.
PYTEST = $(VENV)/bin/python -m pytest -n $(TEST_PROCESSES) --dist worksteal \
	$(if $(LONGEST_TEST),--longest $(LONGEST_TEST))

test: $(VENV)/.ready
	$(PYTEST) $(OPTIONS)

# Slow tests, too, and all examples of property tests: more than an hour on 2 cores, in one go or in
# parts, `make test-all PART=0/16` to 15/16. CI runs one of these.
test-all: $(VENV)/.ready
	$(PYTEST) --all $(if $(PART),--part $(PART)) $(OPTIONS)

check: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/python tools/module_length.py
	$(VENV)/bin/python tools/check_docstrings.py
	$(VENV)/bin/python tools/list_layers.py --check
	$(VENV)/bin/python tools/spi_surface.py --check
	$(VENV)/bin/python tools/list_ops.py --check
	$(VENV)/bin/python tools/plant_faults.py --check

format: $(VENV)/.ready
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# Builds every wheel and tries it where the source tree cannot be seen.
wheels: $(VENV)/.ready
	tools/check_wheels.sh $(VENV)/bin/python

startup: $(VENV)/.ready
	$(VENV)/bin/python benchmarks/startup.py

# Ratios against code written by hand, in one run each; minutes, not part of CI.
bench: $(VENV)/.ready
	$(VENV)/bin/python -m benchmarks.numpy_mlp
	$(VENV)/bin/python -m benchmarks.numpy_gpt
	$(VENV)/bin/python -m benchmarks.planning
	$(VENV)/bin/python -m benchmarks.planning_steps
	$(VENV)/bin/python benchmarks/resharding.py
	$(VENV)/bin/python -m benchmarks.overheads

# The same against JAX by hand; goes on where a limit is broken, and fails in the end.
bench-jax: $(VENV)/.ready
	@failed=0; for run in "mlp --devices 1" "mlp --devices 8" "gpt --devices 1" "gpt --devices 8" depth \
		placement moe "moe --dropless"; do \
		$(VENV)/bin/python -m benchmarks.jax_$$run || failed=1; \
	done; for run in training stage_memory decoding overheads adamw "adamw --model llama"; do \
		$(VENV)/bin/python -m benchmarks.$$run --backend jax || failed=1; \
	done; exit $$failed

# The same against eager PyTorch, DDP and DTensor; every rank is a process.
bench-torch: $(VENV)/.ready
	@failed=0; for run in mlp "gpt --width 64 --jit" gpt "gpt --width 64 --ranks 2" "gpt --ranks 2" \
		"gpt --width 64 --ranks 4" "gpt --ranks 4" "pipeline --width 64" pipeline pool moe \
		"moe --dropless"; do \
		$(VENV)/bin/python -m benchmarks.torch_$$run || failed=1; \
	done; for run in training "training --ranks 2" stage_memory decoding overheads adamw "adamw --model llama"; do \
		$(VENV)/bin/python -m benchmarks.$$run --backend torch || failed=1; \
	done; exit $$failed

# The same against mx.value_and_grad and average_gradients, on OpenBLAS where the system has it.
bench-mlx: $(VENV)/.ready
	@failed=0; for run in mlp "mlp --sizes 784,512,256,10 --batch 128" "gpt --width 64" gpt \
		"gpt --width 64 --ranks 2" "gpt --ranks 2"; do \
		$(VENV)/bin/python -m benchmarks.mlx_$$run || failed=1; \
	done; for run in overheads adamw "adamw --model llama"; do \
		$(VENV)/bin/python -m benchmarks.$$run --backend mlx || failed=1; \
	done; exit $$failed

clean:
	rm -rf $(VENV) $(DEMO_VENV) .cache

# A stamp file says that a venv is complete; it is remade when what it was made from changes.
$(VENV)/.ready: requirements-dev.txt constraints.txt $(PACKAGES)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet -r requirements-dev.txt
	touch $@

$(DEMO_VENV)/.ready: mithril-core/pyproject.toml
	$(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/python -m pip install --disable-pip-version-check --quiet -e ./mithril-core
	touch $@
