# `make demo` and `make test` do everything on a machine that has Python 3.11+, make and a C++ compiler.
PYTHON ?= python3
# Which torch to install. The pinned release is a CPU build where that is what pip finds; the README says how to choose.
TORCH_SPEC ?= torch==2.13.0
# Further arguments of every `pip install`, such as another package index.
PIP_ARGS ?=

VENV := .venv
ASKED := $(PYTHON) $(TORCH_SPEC) $(PIP_ARGS)
BIN := $(VENV)/bin

.PHONY: demo test test-old-transformers check docs wheel install install-dev clean

demo: install
	$(BIN)/depthroute demo

test: check
	$(BIN)/python -m pytest

# The oldest transformers that the package takes, laid over the environment's: its caches have other names.
test-old-transformers: install-dev
	$(BIN)/python -m pip install -q $(PIP_ARGS) --no-deps --upgrade --target $(VENV)/old \
		transformers==4.56.0 tokenizers==0.22.2 huggingface-hub==0.36.2 datasets==4.4.1
	PYTHONPATH=$(CURDIR)/$(VENV)/old $(BIN)/python -m pytest \
		tests/test_huggingface.py tests/test_huggingface_in_place.py tests/test_export.py tests/test_generate.py

check: install-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

# Into site/, from files of this folder alone; a warning is an error, and so is a page that loads from elsewhere.
docs: install-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@! grep -rE '<(script|link|img)[^>]+(src|href)="?(https?:)?//' --include='*.html' site

# The wheel as a stranger meets it: a new environment, and a folder that holds nothing else.
wheel: install-dev
	rm -rf dist
	$(BIN)/python -m build
	place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && $(PYTHON) -m venv $$place/venv && \
		$$place/venv/bin/python -m pip install -q $(PIP_ARGS) "$(TORCH_SPEC)" dist/*.whl && \
		cd $$place && venv/bin/depthroute demo --quick

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

# Another interpreter, torch or index asks for another environment.
.PHONY: FORCE
$(VENV)/.asked: FORCE
	@echo '$(ASKED)' | cmp -s - $@ || { rm -rf $(VENV) && mkdir $(VENV) && echo '$(ASKED)' > $@; }

$(VENV)/.installed: pyproject.toml $(VENV)/.asked
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11; run make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_ARGS) "$(TORCH_SPEC)"
	$(BIN)/python -m pip install $(PIP_ARGS) -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install $(PIP_ARGS) -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV)
