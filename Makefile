# make workbook | test | lab | lint | notebooks | docs | bench | gpu | mutants | mutants-changed | horovod
# | horovod-tensorflow | beside | constraints | test-torch; each sets up first, once.
# With another Python: make workbook PYTHON=python3.12. On the PyTorch that a site has: make workbook SITE=1

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
# As many as there are cores for this process, at most four: a login node is not ours alone.
JOBS ?= $(shell cores=$$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN || echo 2); echo $$((cores < 4 ? cores : 4)))
SINCE ?= HEAD~1

# SITE=1, here or in the environment: on the site's own packages, of which PyTorch and torchvision stay.
ON_SITE := $(filter-out 0,$(SITE))

SHELL := /bin/bash
BIN := $(abspath $(VENV))/bin
export PATH := $(BIN):$(PATH)
export JUPYTER_CONFIG_PATH := $(CURDIR)/.jupyter$(addprefix :,$(JUPYTER_CONFIG_PATH))

.PHONY: workbook test lab lint notebooks docs bench gpu mutants mutants-changed horovod horovod-tensorflow beside constraints \
    test-torch setup

# UNITS="02_data_parallel" for some only. One unit more than cores: some wait for Slurm or for a deadline.
workbook: setup
	@$(BIN)/course workbook --jobs $$(($(JOBS) + 1)) $(UNITS)

# One worker more than cores: some tests wait for Slurm, a browser or a deadline.
test: setup
	$(BIN)/pytest -n $$(($(JOBS) + 1)) --dist loadgroup

# INSTRUCTOR=1: with nbgrader's panels for those who grade.
lab: setup
	$(if $(filter-out 0,$(INSTRUCTOR)),JUPYTER_CONFIG_PATH=$(CURDIR)/.jupyter/instructor:$$JUPYTER_CONFIG_PATH )$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/index.ipynb

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

notebooks: setup
	@$(BIN)/course notebooks

# docs/architecture.md, and the figures of that page and of the README.
docs: setup
	@$(BIN)/python -m docs.architecture
	@$(BIN)/python -m docs.first_look

# SUBJECTS="memory pipeline" for some only.
bench: setup
	$(BIN)/python -m benchmarks $(SUBJECTS)

# On a node with GPUs: what needs one, all units on processes, measurements.
gpu: setup
	@$(BIN)/course gpu

# NAMES="02_data_parallel pass_the_token" for some units or exercises only.
mutants: setup
	$(BIN)/python -m mutants --jobs $(JOBS) $(NAMES)

# SINCE=main: of the exercises whose source or grader differs from that revision, a sample within some minutes.
mutants-changed: setup
	$(BIN)/python -m mutants --jobs $(JOBS) --changed-since $(SINCE) --at-most 24 --minutes 2

# MPI=1: with Open MPI as well.
horovod: setup
	@$(BIN)/course beside horovod$(if $(filter-out 0,$(MPI)),-mpi)

horovod-tensorflow: setup
	@$(BIN)/course beside horovod-tensorflow

# NAMES="torchgpipe": what else stands beside the workbook's packages. `course beside` lists it.
beside: setup
	@for name in $(NAMES); do $(BIN)/course beside $$name || exit; done

# The newest versions of all packages but those in .ci/held-back.txt, in an environment of their own; written down once
# all tests have passed there.
constraints: setup
	rm -rf .venv-new
	$(MAKE) workbook test VENV=.venv-new CONSTRAINTS=.ci/held-back.txt
	.venv-new/bin/pip freeze --exclude-editable | sed '/ @ /d' | sed 's/+.*//' | sort --ignore-case >build/constraints.txt
	mv build/constraints.txt constraints.txt

# TORCH=2.6.0: all units and their solutions (UNITS for some), and the tests of launching, simulator and graders, with another
# PyTorch: in an environment beside this one, which has it in place of this one's.
test-torch: setup
	@$(BIN)/course beside torch-$(TORCH)
	@$(BIN)/python -m tests.other_torch $(TORCH) $$(($(JOBS) + 1)) $(UNITS)

setup: $(VENV)/.installed $(VENV)/.packages

# One pip command holds the pins, so that torchvision cannot bring another torch along. The constraints keep what is
# published tomorrow out.
$(VENV)/.installed: pyproject.toml .jupyter/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("This is Python %d.%d; Python 3.11 or later is needed. Name another one: make workbook PYTHON=python3.12" % sys.version_info[:2])'
ifneq ($(ON_SITE),)
	@PYTHON=$(PYTHON) EXTRAS=[dev] bash slurm/containers/install.sh $(VENV)
else
	@$(PYTHON) -m venv $(VENV) || { echo "Python cannot make a virtual environment here. On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Setting up $(VENV). The first time, pip downloads PyTorch and JupyterLab: some minutes."
	@set -o pipefail; $(BIN)/python -m pip install --disable-pip-version-check --constraint $(CONSTRAINTS) "torch==2.13.0" "torchvision==0.28.0" -e ".[dev]" ./.jupyter | sed '/^Requirement already satisfied/d'
endif
	@touch $@

$(VENV)/.packages: apt.txt .ci/packages | $(VENV)/.installed
	@bash .ci/packages
	@touch $@
