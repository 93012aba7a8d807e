"""The images of slurm/containers: one way to install in all of them, and the image's own torch stays.

`.ci/container` installs into a fresh Debian, which takes minutes.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "slurm" / "containers"
sys.path.insert(0, str(FOLDER))

from keep_torch import constraints, requirements  # noqa: E402

DEFINITIONS = sorted(FOLDER.glob("*.def"))
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
INSTALL = "bash /opt/workbook/slurm/containers/install.sh /opt/environment"
NGC = {
    "torch": "2.8.0a0+5228986c39.nv25.6",
    "torchvision": "0.22.0a0+95f10a4e",
    "numpy": "1.26.4",
    "jupyterlab": "4.3.5",
}
"""What an image of NVIDIA's has, and what it tells pip."""
NGC_CONSTRAINTS = [
    "# of the image",
    "torch==2.8.0a0+5228986c39.nv25.6",
    "numpy==1.26.4",
    "jupyterlab==4.3.5",
    "tqdm==4.67.1",
]


def lines(here: dict[str, str], image: list[str], *wanted: str) -> list[str]:
    """The constraints where the workbook needs so much and has been tested with other versions."""
    tested = [
        "torch==2.13.0",
        "numpy==2.4.6",
        "jupyterlab==4.6.4",
        "tqdm==4.69.1",
        "rich==15.1.0",
        "triton==3.7.0",
    ]
    needs = {requirement.name: requirement for _, requirement in requirements(list(wanted))}
    return list(constraints(here, image, tested, needs))


# --- Definitions


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda path: path.stem)
def test_every_definition_installs_in_the_same_way(definition: Path):
    text = definition.read_text()
    assert text.count(INSTALL) == DOCKERFILE.count(INSTALL) == 1
    assert "export PATH=/opt/environment/bin:$PATH" in text


def test_there_is_one_for_each_kind_of_machine():
    assert [path.stem for path in DEFINITIONS] == ["cpu", "cuda", "rocm"]


def test_images_have_one_version():
    # Invariant: what is published tomorrow changes no image.
    bases = [re.search(r"^From: (.*)$", path.read_text(), re.MULTILINE) for path in DEFINITIONS]
    names = [base[1] for base in bases if base] + re.findall(r"^ARG BASE=(.*)$", DOCKERFILE, re.MULTILINE)
    assert len(names) == len(DEFINITIONS) + 1
    assert all(re.search(r"(:[\w.-]*\d[\w.-]*|_\d{6}\.sif)$", name) for name in names), names
    assert not [name for name in names if "latest" in name]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda path: path.stem)
def test_what_goes_into_an_image_is_there_and_holds_no_answer(definition: Path):
    # Invariant: the same files in every image, all of which are kept, and never the solutions.
    files = re.search(r"^%files\n((?:    .*\n)+)", definition.read_text(), re.MULTILINE)
    assert files
    copied = [line.split() for line in files[1].splitlines()]
    assert copied == [line.split()[1:] for line in DOCKERFILE.splitlines() if line.startswith("COPY ")]
    assert all((ROOT / source).exists() and target == f"/opt/workbook/{source}" for source, target in copied)
    assert not {"solutions", "tests", "mutants"} & {source for source, _ in copied}


def test_the_scripts_are_valid():
    for script in (FOLDER / "install.sh", ROOT / ".ci" / "container"):
        subprocess.run(["bash", "-n", script], check=True)


def test_docker_parses_its_file():
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("No Docker answers here: install it and start its daemon.")
    command = ["docker", "build", "--check", "--file", FOLDER / "Dockerfile", ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# --- The torch that is there


def test_the_image_s_torch_is_pinned_as_it_is():
    said = lines(NGC, NGC_CONSTRAINTS, "torch>=2.6", "torchvision>=0.21", "numpy>=1.26", "jupyterlab>=4.2")
    assert "torch==2.8.0a0+5228986c39.nv25.6" in said
    assert "torchvision==0.22.0a0+95f10a4e" in said
    assert "torch==2.13.0" not in said


def test_what_the_image_has_is_not_replaced_without_need():
    # Invariant: a tested version is for what is neither installed nor constrained, and no part of torch.
    said = lines(NGC, NGC_CONSTRAINTS, "torch>=2.6", "numpy>=1.26", "jupyterlab>=4.2")
    assert {"numpy==1.26.4", "jupyterlab==4.3.5", "tqdm==4.67.1", "rich==15.1.0"} <= set(said)
    assert not {"numpy==2.4.6", "jupyterlab==4.6.4", "tqdm==4.69.1", "triton==3.7.0"} & set(said)


def test_what_the_workbook_cannot_run_with_is_left_out_and_told(capsys: pytest.CaptureFixture[str]):
    said = lines(NGC, NGC_CONSTRAINTS, "torch>=2.6", "numpy>=2.0", "jupyterlab>=4.6,<5")
    assert not [line for line in said if line.startswith(("numpy", "jupyterlab"))]
    told = capsys.readouterr().err
    assert "numpy 1.26.4 of the image is not used: the workbook needs numpy>=2.0." in told
    assert "jupyterlab 4.3.5 of the image is not used" in told


def test_a_torch_that_is_too_old_is_a_sentence():
    with pytest.raises(SystemExit, match=r"torch 2\.5\.1 is here, .* needs torch>=2\.6: take another image"):
        lines({"torch": "2.5.1"}, [], "torch>=2.6")


def test_without_torch_nothing_is_installed(tmp_path: Path):
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None or not subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        pytest.skip("There is no Python without torch in /usr/bin: apt-get install python3")
    command = ["bash", FOLDER / "install.sh", tmp_path / "environment"]
    done = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", "PYTHON": python}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert (
        "There is no torch with torchvision in" in done.stderr
        or "the workbook needs Python 3.11" in done.stderr
    )
    assert not (tmp_path / "environment").exists()
