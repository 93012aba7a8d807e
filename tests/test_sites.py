"""docs/sites.md: every site has its section, and what is to be typed there exists and is accepted."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from course_lib.slurm.sites import sites
from workbook import cli

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "sites.md").read_text()
BLOCKS = [line.strip() for line in TEXT.splitlines() if line.startswith("    ")]
QUOTED = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", TEXT)]
GROUP = typer.main.get_command(cli.app)


def commands() -> list[list[str]]:
    """The words after `course` wherever the page has it typed."""
    words = [
        shlex.split(line, comments=True) for line in BLOCKS + [code for code in QUOTED if "course " in code]
    ]
    found = []
    for line in words:
        for position, word in enumerate(line):
            if word.rsplit("/", 1)[-1] == "course" and (
                position == 0 or line[0] in ("apptainer", "singularity")
            ):
                found.append([each for each in line[position + 1 :] if not each.startswith(">")])
    return found


def section(title: str) -> str:
    """A section's text; empty if there is none."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


@pytest.mark.parametrize("name", [name for name in sites() if name != "local"])
def test_every_site_has_a_section_from_the_login_to_jupyter(name: str):
    site = sites()[name]
    text = section(site.title.split(" at ")[0])
    assert f"ssh USER@{site.login}" in text
    assert "install.sh" in text or "make setup" in text or "workbook.sif" in text
    assert "portal" in text.lower() or "web interface" in text
    assert any(f"`{partition}`" in TEXT for partition, limits in site.partitions.items() if limits.gpus == 0)


def test_there_are_commands_to_look_at():
    assert len(commands()) > 12


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_of_the_page_exists(words: list[str]):
    command, path = GROUP, []
    while hasattr(command, "commands"):
        name = words[len(path)]
        assert name in command.commands, words
        command, path = command.commands[name], [*path, name]
    options = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert {word for word in words if word.startswith("-")} <= options | {"--"}


@pytest.mark.parametrize("words", [each for each in commands() if "render" in each], ids=" ".join)
def test_every_script_of_the_page_is_rendered(words: list[str], monkeypatch: pytest.MonkeyPatch):
    # Invariant: what the page has typed is not refused.
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", ["course", *(word.replace("NUMBER", "1") for word in words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code


def test_every_claim_names_a_guide_that_is_listed():
    numbers = {int(number) for number in re.findall(r"\[(\d+)\]", TEXT)}
    listed = re.findall(r"^(\d+)\. .*: https://\S+$", TEXT, re.MULTILINE)
    assert [int(number) for number in listed] == list(range(1, len(listed) + 1))
    assert numbers == set(range(1, len(listed) + 1))


def test_prices_of_the_page_are_those_of_the_table():
    said = dict(re.findall(r"^\| (\w+) \|.*?\| `([\w-]+)`", TEXT, re.MULTILINE))
    rates = dict(re.findall(r"^\| (\w+) \|.*?\| `[\w-]+`, ([\d.]+) SU", TEXT, re.MULTILINE))
    titles = {site.title.split(" at ")[0]: site for site in sites().values() if site.name != "local"}
    assert set(said) == set(titles)
    for title, partition in said.items():
        limits = titles[title].partitions[partition]
        assert limits.gpus == 0
        assert title not in rates or float(rates[title]) == limits.node_rate
