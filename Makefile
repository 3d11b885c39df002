# The two commands of the README are `make run` and `make test`; both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin
export PYTHONDONTWRITEBYTECODE ?= 1

.PHONY: setup run check quick test suite ray kernels figures names card lint types fix clean

setup: .venv/.ready

.venv/.ready: pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "make setup: python=%d.%d is too old; 3.11 or newer; PYTHON=python3.12 make setup" % sys.version_info[:2])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	# A CUDA build of torch brings the Triton it was made for; a CPU build brings none, and tests compile with this one.
	$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check triton==3.9.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

run: setup
	$(BIN)/attnbench run quick --html results/quick.html

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet . || { echo "not formatted: run make fix"; exit 1; }

types: setup
	$(BIN)/mypy

# The oldest Triton that is supported, beside the pinned one: kernels are compiled ahead of time with both.
.venv/triton-3.6/.ready: .venv/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .venv/triton-3.6 triton==3.6.0
	touch $@

# A process that has run its share takes from the others': the longest tests stand close together. Three for two cores, as
# a third of the time of tests of workers, browsers and rank processes is waiting. Some hundred processes import the
# package, and pytest rewrites every test: bytecode is kept, whatever the environment says.
# Types are checked beside them: mypy has one process, and the other core would be idle.
test: export PYTHONDONTWRITEBYTECODE =
test: lint .venv/triton-3.6/.ready
	@$(MAKE) --no-print-directory --jobs 2 types suite

suite: .venv/triton-3.6/.ready
	$(BIN)/python -m pytest -n 3 --dist worksteal

# A Ray that no other test sees, and a process of its own: it leaves threads behind. Three nodes on loopback.
.venv/ray/.ready: .venv/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --target .venv/ray ray==2.60.0
	touch $@

ray: .venv/ray/.ready
	PYTHONPATH=$(CURDIR)/.venv/ray $(BIN)/python -m pytest -n 0 tests/sweep/test_ray.py

# Before a release: all that the tests list is compiled, by the oldest Triton and for other cards than sm_90 too.
kernels: export PYTHONDONTWRITEBYTECODE =
kernels: .venv/triton-3.6/.ready
	ATTNBENCH_EVERY_KERNEL=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/kernels -k compiled

# After a change of a kernel: what `make test` would compile at every run until then (tests/kernels/figures.py).
figures: export PYTHONDONTWRITEBYTECODE =
figures: .venv/triton-3.6/.ready
	rm -rf results/figures && mkdir -p results/figures
	ATTNBENCH_KERNEL_FIGURES=$(CURDIR)/results/figures $(BIN)/python -m pytest -n 2 --dist worksteal tests/kernels -k compiled
	$(BIN)/python tests/kernels/figures.py results/figures

# After new launch configurations or defaults: names that were listed keep their meaning (tests/kernels/test_config_names.py).
names: setup
	PYTHONPATH=src:tests $(BIN)/python -m kernels.test_config_names

# Before a release, on a machine with a GPU: what CI skips, every command of the docs that measures among it.
card: export PYTHONDONTWRITEBYTECODE =
card: setup
	$(BIN)/python -m pytest -m gpu -n 8 --dist worksteal

# The contributor's loop: what breaks most often, in under a minute on two idle cores (types and tests side by side).
# `make test` is the whole.
check: lint
	@$(MAKE) --no-print-directory --jobs 2 --output-sync types quick

quick: export PYTHONDONTWRITEBYTECODE =
quick: setup
	$(BIN)/python -m pytest -n 2 tests/test_layers.py tests/test_types.py tests/test_text.py tests/verdict tests/presentation \
	  tests/suites tests/workloads tests/check/test_compare.py tests/store/test_runfile.py tests/kernels/test_configs.py \
	  tests/docs/test_docs_links.py tests/docs/test_docs_languages.py tests/docs/test_docs_coverage.py

fix: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +
