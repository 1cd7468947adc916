# `make demo` and `make test` work on a bare machine with Python >= 3.10 and make.
PYTHON ?= python3
VENV := .venv
PYTHONS ?= python3.10 python3.11 python3.12 python3.13 python3.14
BIN := $(VENV)/bin

.PHONY: demo test test-all matrix fuzz lint docs wheel clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      the whole main job on generated faces, in minutes"
	@echo "make test      every part and most commands once, in three minutes on two cores"
	@echo "make test-all  all tests: whole runs, kills, exports, studies, and those of minutes"
	@echo "make matrix    make test on other Pythons: PYTHONS='python3.10 python3.14'"
	@echo "make fuzz      thousands of damaged files of each kind, which must end in a sentence"
	@echo "make lint      ruff and mypy"
	@echo "make docs      the documentation as a site, in site/"
	@echo "make wheel     what people install, by itself, in an empty environment"

# A stamp rather than the folder, so that an interrupted installation starts again.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[compare,dev,faiss,gpu,hub,insightface,onnx,openvino,parquet,serve,tensorboard]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/facerec demo

# A file stays with one worker, so that what its tests share is made once. A worker that dies ends
# the run: with another in its place, xdist may wait for ever. A worker has a core, and one thread:
# two workers whose products take two threads each take twice as long.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test: $(VENV)/.installed
	$(PYTEST)

# Some of them: make test-all MARKS='integration and not slow'
MARKS ?=
test-all: $(VENV)/.installed
	$(PYTEST) -m '$(MARKS)' --hypothesis-profile full

# Each Python has an environment of its own, with the newest packages that support it.
matrix:
	for python in $(PYTHONS); do $(MAKE) test PYTHON=$$python VENV=.venv-$$python || exit; done

# Other cases, or a few kinds: make fuzz FUZZ='--hypothesis-seed 1 -k "pth or onnx"'
fuzz: $(VENV)/.installed
	$(PYTEST) --dist load tests/fuzz -m '' --hypothesis-profile fuzz $(FUZZ)

lint: $(VENV)/.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: $(VENV)/.installed
	.ci/wheel

clean:
	rm -rf $(VENV) build dist site *.egg-info
