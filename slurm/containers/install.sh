#!/usr/bin/env bash
# Install the workbook beside the torch and torchvision that an image, or a site's module, has already:
#
#     bash slurm/containers/install.sh FOLDER
#
# makes an environment in FOLDER that sees all packages which are here, and leaves torch and torchvision as they are.
# PYTHON names the Python that has them, if it is not python3; EXTRAS=[dev] adds the tools for development.
# `make setup SITE=1` calls it for .venv.
set -euo pipefail
environment=${1:?Name the folder of the environment: bash slurm/containers/install.sh FOLDER}
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")/../.." && pwd)

"$python" -c 'import sys
sys.version_info >= (3, 11) or sys.exit(
    "This is Python %d.%d; the workbook needs Python 3.11 or later. PYTHON names another one." % sys.version_info[:2])'
which_torch='import importlib.metadata, torch
print(torch.__version__, torch.__file__, "with torchvision", importlib.metadata.version("torchvision"))'
before=$("$python" -c "$which_torch") || {
    echo "There is no torch with torchvision in $(command -v "$python"). Take the module or the image that has them." >&2
    exit 1
}
"$python" -m venv --system-site-packages "$environment" || {
    echo "Python cannot make an environment here. On Debian or Ubuntu: apt-get install python3-venv" >&2
    exit 1
}
# An image's Python may itself be that of an environment, which one made from it does not see.
"$python" -c 'import site, sys; sys.prefix == sys.base_prefix or print(*site.getsitepackages(), sep="\n")' \
    >"$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/image.pth"

"$environment/bin/python" "$here/slurm/containers/keep_torch.py" >"$environment/constraints.txt"
export PIP_CONSTRAINT=$environment/constraints.txt
"$environment/bin/python" -m pip install --editable "$here${EXTRAS:-}" "$here/.jupyter" | sed '/^Requirement already satisfied/d'
"$environment/bin/python" "$here/slurm/containers/own_copies.py" |
    xargs --no-run-if-empty "$environment/bin/python" -m pip install --quiet --no-deps --ignore-installed

after=$("$environment/bin/python" -c "$which_torch")
if [ "$after" != "$before" ]; then
    echo "Not the torch that was here: $after in the place of $before. Remove $environment." >&2
    exit 1
fi
"$environment/bin/python" -c 'import torch; torch.ones(1).numpy()' || {
    echo "This torch does not work with the numpy that the workbook needs: take an image that is newer." >&2
    exit 1
}
"$environment/bin/course" doctor
