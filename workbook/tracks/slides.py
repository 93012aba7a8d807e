"""Slides of a track: of each section its first figure, of each exercise its question.

Figures are what the units' own cells drew when the solutions were executed. reveal.js is part of the file, so
that it opens anywhere; the key S shows the speaker's notes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

import nbformat
from nbconvert.filters.markdown_mistune import MarkdownWithMath
from nbformat import NotebookNode

from graders.grading.page import page_templates
from workbook.build import Efforts
from workbook.pages import MathMLRenderer, static_notebook
from workbook.paths import Places
from workbook.release import Effort, spoken_range
from workbook.tracks.cut import FOLDED, in_sections, questions_in
from workbook.tracks.folder import Calendar
from workbook.tracks.mistakes import Mistake
from workbook.tracks.track import Session, Track
from workbook.unit import definition_in, summary

TEMPLATES = Path(__file__).parents[1] / "templates" / "track"
REVEAL = TEMPLATES / "reveal"
Mistakes = Mapping[str, Mapping[str, Sequence[Mistake]]]
"""Unit -> exercise -> what students get wrong."""
_FIGURE = re.compile(r"<img [^>]*>")
_ALT = re.compile(r'alt="([^"]*)"')
_LEAD = 260
"""So many characters can be read from the back of a room; whole sentences are kept."""
_MOST_MISTAKES = 6
_MOST_QUESTIONS = 3
"""On one slide."""


@dataclass(frozen=True, slots=True)
class Slide:
    """One slide. body: HTML. notes: for the speaker, paragraphs of text."""

    title: str
    body: str = ""
    notes: tuple[str, ...] = ()
    kind: str = field(default="section")


def write_slides(track: Track, own: Places, mistakes: Mistakes, efforts: Efforts, calendar: Calendar) -> Path:
    """Write slides.html of the executed solutions in a trainer's folder."""
    slides = [*_slides(track, own, mistakes, efforts, calendar)]
    assets = {
        path.name.replace(".", "_"): path.read_text(encoding="utf-8") for path in sorted(REVEAL.glob("*.*s"))
    }
    text = (
        page_templates(TEMPLATES).get_template("slides.html.j2").render(track=track, slides=slides, **assets)
    )
    path = own.root / "slides.html"
    path.write_text(text, encoding="utf-8")
    return path


def _slides(
    track: Track, own: Places, mistakes: Mistakes, efforts: Efforts, calendar: Calendar
) -> Iterator[Slide]:
    yield Slide(track.title, f"<p>{escape(track.about)}</p>", kind="title")
    met: set[str] = set()
    for session, when in zip(track.sessions, calendar.times(track), strict=True):
        yield Slide(session.title, f"<p>{when}</p>", kind="title" if session.unit else "break")
        if not session.unit:
            continue
        executed = own.of_unit(own.solved / "simulated", session.unit)
        if not executed.exists():
            executed = own.of_unit(own.solved / "once", session.unit)
        notebook = nbformat.read(executed, as_version=4)
        static_notebook(notebook)
        questions = [] if session.unit in met else _predictions(notebook.cells)
        for first in range(0, len(questions), _MOST_QUESTIONS):
            several = questions[first : first + _MOST_QUESTIONS]
            items = "".join(f"{number}. {item}\n" for number, item in enumerate(several, start=first + 1))
            yield Slide("Before you measure: guess", _html(items))
        met.add(session.unit)
        yield from _of_sections(session, notebook, efforts, mistakes[session.unit])


def _of_sections(
    session: Session, notebook: NotebookNode, efforts: Efforts, mistakes: Mapping[str, Sequence[Mistake]]
) -> Iterator[Slide]:
    """The slides of a session's sections, each followed by those of its exercises."""
    sections: dict[str, list[NotebookNode]] = {}
    for cell, section in in_sections(notebook.cells):
        if section and (session.takes_all or section in session.sections):
            sections.setdefault(section, []).append(cell)
    for cells in sections.values():
        yield _section_slide(cells)
        for name, specification in _exercises(cells):
            if not session.takes_all and name not in session.exercises:
                continue
            effort = efforts(session.unit)[name]
            notes = [f"{each.criterion}: {each.sentence}" for each in mistakes.get(name, ())]
            body = (
                f"<p>{escape(specification)}</p>"
                f"<p class='question'>{_html(question_of(effort), inline=True)}</p>"
                f"<p class='small'>{spoken_range(effort.minutes)} · {effort.points:g} points · "
                f"<code>hint(&quot;{name}&quot;)</code> has more</p>"
            )
            yield Slide(name, body, ("What students get wrong:", *notes[:_MOST_MISTAKES]), kind="exercise")


def question_of(effort: Effort) -> str:
    """What an exercise's first hint asks, without what it then tells."""
    asked, mark, _ = effort.hints[0].rpartition("?")
    return asked + mark or effort.hints[0]


def _section_slide(cells: Sequence[NotebookNode]) -> Slide:
    """A section's heading, its first sentences, and the first figure that its cells drew."""
    heading, _, text = cells[0].source.partition("\n")
    figure = next((found for cell in cells for found in _figures(cell)), "")
    body = f"<div class='lead'>{_html(_first_sentences(text))}</div>{figure}"
    told = _ALT.search(figure)
    return Slide(heading.removeprefix("## "), body, (f"The figure: {told[1]}",) if told else ())


def _figures(cell: NotebookNode) -> Iterator[str]:
    for output in cell.get("outputs", ()):
        yield from _FIGURE.findall("".join(output.get("data", {}).get("text/html", "")))


def _first_sentences(text: str) -> str:
    """Whole sentences from the beginning of a text, as many as a slide holds; one in any case."""
    paragraph = text.strip().split("\n\n")[0].replace("\n", " ")
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z`*])", paragraph)
    taken = sentences[:1]
    for sentence in sentences[1:]:
        if len(" ".join([*taken, sentence])) > _LEAD:
            break
        taken.append(sentence)
    return " ".join(taken)


def _exercises(cells: Sequence[NotebookNode]) -> Iterator[tuple[str, str]]:
    """The names of a section's exercises, with the first sentence of what each must do."""
    for cell in cells:
        name = cell.metadata.get("exercise")
        if name and (definition := definition_in(cell, name)):
            yield name, summary(definition)


def _predictions(cells: Sequence[NotebookNode]) -> list[str]:
    """The questions that a unit asks before it measures, in markdown."""
    for question, guess in pairwise(cells):
        if "= predict(" in guess.source and guess.metadata.get("jupyter") != FOLDED:
            return questions_in(question.source)[1]
    return []


def _html(markdown: str, inline: bool = False) -> str:
    """Markdown as HTML, formulas as MathML."""
    text = str(MarkdownWithMath(renderer=MathMLRenderer(escape=False)).render(markdown))
    return re.sub(r"^<p>|</p>\s*$", "", text) if inline else text
