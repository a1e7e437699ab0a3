# Targets of statecell. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CONFIG ?= smollm2
OUT ?= build/verilog
PROMPT ?= The best thing about a walk by the sea is
TOKENS ?= 32
WAVES ?= 0
JOBS ?= 2
PYTEST_ARGS ?=
BOARD ?= ulx3s_85f
FAMILY ?= ecp5
BOARDS ?= icebreaker tang_nano_20k ulx3s_85f ecpix5_85f orangecrab_85f versa_ecp5_5g
DOCS := docs/protocol.md docs/numerics.md

export PYTHONHASHSEED := 0

.DEFAULT_GOAL := help
.PHONY: help setup demo test sim check docs format verilog bitstream bitstreams bench-boards program asic postsynthesis train report doctor clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with everything in it; does nothing the second time

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("statecell needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=/path/to/python3.11.") if sys.version_info < (3, 11) else None'
	@echo "setup: making $(VENV) and installing the pinned packages (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV) || { echo "setup: python3 -m venv failed; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
	@echo "setup: done"

demo: $(STAMP) ## SmolLM2-135M writes text with all its attention in the simulated INT4 array
	@$(BIN)/statecell doctor --quiet
	$(BIN)/statecell generate "$(PROMPT)" --model smollm2-135m --device sim: --cache int4 --tokens $(TOKENS)

test: $(STAMP) ## run every test
	@$(BIN)/statecell doctor --quiet
	$(BIN)/pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

sim: $(STAMP) ## run the cocotb benches in Verilator; WAVES=1 writes FST waveforms to build/waves
	@$(BIN)/statecell doctor --quiet
	WAVES=$(WAVES) $(BIN)/pytest tests/sim/benches $(PYTEST_ARGS)

check: $(STAMP) ## ruff, mypy, and whether the generated tables of docs/ are current
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m statecell.spec.tables --check $(DOCS)

docs: $(STAMP) ## write the generated tables of docs/ anew
	$(BIN)/python -m statecell.spec.tables $(DOCS)

format: $(STAMP) ## sort imports and apply ruff's safe repairs
	$(BIN)/ruff check --fix .

verilog: $(STAMP) ## emit the Verilog of CONFIG into OUT
	$(BIN)/statecell verilog --config $(CONFIG) -o $(OUT)

bitstream: $(STAMP) ## make the bitstream of BOARD in build/BOARD, with its report and summary
	$(BIN)/statecell bitstream --board $(BOARD)

bitstreams: $(STAMP) ## make the bitstreams of all BOARDS; takes hours
	@for board in $(BOARDS); do $(BIN)/statecell bitstream --board $$board || exit; done

bench-boards: bitstreams ## make the bitstreams of BOARDS and fail if area or clock is worse than their baselines
	$(BIN)/statecell boards $(BOARDS:%=--check %)

program: $(STAMP) ## load the bitstream of BOARD into the board on USB
	$(BIN)/statecell program --board $(BOARD)

asic: $(STAMP) ## estimate area and clock of the tile of CONFIG in standard cells
	$(BIN)/statecell asic --config $(CONFIG)

postsynthesis: $(STAMP) ## simulate netlists of tiny for FAMILY and of the iCEBreaker on the cell models of Yosys, against the model
	$(BIN)/statecell postsynthesis --family $(FAMILY)
	$(BIN)/statecell postsynthesis --board icebreaker

train: $(STAMP) ## train hybrid-tiny in build/hybrid-tiny, the shipped recipe; takes hours, and goes on where it was interrupted
	$(BIN)/statecell train --out build/hybrid-tiny

report: $(STAMP) ## measure and draw the plots into docs/figures
	$(BIN)/statecell report -o docs/figures

doctor: $(STAMP) ## check that compiler, Verilator, torch and disk space are there
	@$(BIN)/statecell doctor

clean: ## remove build outputs and tool caches, keep .venv and the user cache
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find sw hw sim boards tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## clean, and remove .venv too
	rm -rf $(VENV)
