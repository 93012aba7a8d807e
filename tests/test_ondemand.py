"""The Open OnDemand app in slurm/ondemand: its form, and what Ruby makes of its templates."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
APP = ROOT / "slurm" / "ondemand"
FORM = yaml.safe_load((APP / "form.yml").read_text())
TEMPLATES = sorted(APP.rglob("*.erb"))
GIVEN = {"host", "port", "password"}
"""What Open OnDemand knows of a session that runs."""

ANSWERS = {
    "environment": "/opt/environment",
    "folder": "my workbook",
    "queue": "gpu",
    "account": "",
    "nodes": "2",
    "tasks": "4",
    "gpus": "4",
    "hours": "2",
    "host": "c1",
    "port": "4711",
    "password": "secret",
}
"""What somebody fills in: a form's values are texts."""

RENDER = """
require 'erb'; require 'json'; require 'shellwords'; require 'ostruct'
class String; def blank?; strip.empty?; end; end
given = JSON.parse(ARGV[0])
context = OpenStruct.new(given)
scope = binding
given.each { |name, value| scope.local_variable_set(name, value) }
print ERB.new(STDIN.read, trim_mode: '-').result(scope)
"""


def render(path: Path, **other: str) -> str:
    """What Open OnDemand makes of a template."""
    if shutil.which("ruby") is None:
        pytest.skip("There is no Ruby, in which these templates are written: apt-get install ruby")
    done = subprocess.run(
        ["ruby", "-e", RENDER, json.dumps(ANSWERS | other)],
        input=path.read_text(),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_files_are_those_of_an_interactive_app():
    kept = {str(path.relative_to(APP)) for path in APP.rglob("*") if path.is_file()}
    templates = {"submit.yml.erb", "template/before.sh.erb", "template/script.sh.erb", "view.html.erb"}
    assert kept == {"manifest.yml", "form.yml"} | templates
    assert yaml.safe_load((APP / "manifest.yml").read_text())["role"] == "batch_connect"


def test_the_form_asks_for_each_attribute_that_it_describes():
    assert set(FORM["form"]) == set(FORM["attributes"])
    assert all({"widget", "label"} <= set(attribute) for attribute in FORM["attributes"].values())
    assert set(ANSWERS) == set(FORM["form"]) | GIVEN


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_use_what_the_form_asks_for(path: Path):
    codes = re.findall(r"<%[-=]?(.*?)-?%>", path.read_text())
    names = {
        re.sub(r"^context\.", "", name)
        for code in codes
        for name in re.findall(r"context\.\w+|^\s*\w+", code)
    }
    used = {name.strip() for name in names} - {"end", "unless", "if", "context"}
    assert used <= set(FORM["form"]) | GIVEN, used


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_ruby_understands_every_template(path: Path):
    assert "<%" not in render(path)


def test_what_is_filled_in_is_what_slurm_is_asked_for():
    script: dict[str, Any] = yaml.safe_load(render(APP / "submit.yml.erb"))["script"]
    assert script["queue_name"] == "gpu"
    assert script["wall_time"] == 7200
    assert script["native"] == ["--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4"]
    assert "accounting_id" not in script
    other = yaml.safe_load(render(APP / "submit.yml.erb", account="project", gpus="0"))["script"]
    assert other["accounting_id"] == "project"
    assert not [option for option in other["native"] if "gpu" in option]


def test_the_session_starts_in_a_folder_of_the_student_s_own(tmp_path: Path):
    # Invariant: `course start` copies the notebooks there, and the token is no argument.
    environment, home = tmp_path / "environment", tmp_path / "home"
    (environment / "bin").mkdir(parents=True)
    programs = {
        "python": f"echo {environment}",
        "course": f'{sys.executable} -m workbook.cli "$@" >&2',
        "jupyter": 'echo "$PWD" "$JUPYTER_TOKEN" "$@"',
    }
    for name, does in programs.items():
        (environment / "bin" / name).write_text(f"#!/bin/bash\n{does}\n")
        (environment / "bin" / name).chmod(0o755)
    script = render(APP / "template" / "script.sh.erb", environment=str(environment))

    home.mkdir()
    variables = {"host": "c1", "port": "4711", "password": "secret"}
    variables |= {"HOME": str(home), "PATH": os.environ["PATH"]}
    started = subprocess.run(
        ["bash", "-c", script], env=variables, capture_output=True, text=True, check=True
    )
    folder, token, *arguments = started.stdout.replace("my workbook", "my-workbook").split()
    assert folder == f"{home}/my-workbook"
    assert token == "secret"
    assert "--ServerApp.base_url=/node/c1/4711/" in arguments
    assert not [argument for argument in arguments if "secret" in argument]
    assert (home / "my workbook" / "notebooks" / "index.ipynb").exists()


def test_the_link_leads_to_the_session():
    assert 'href="/node/c1/4711/lab?token=secret"' in render(APP / "view.html.erb")
