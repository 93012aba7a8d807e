"""Executed notebooks as pages that need nothing from the network: no script, font or style from elsewhere.

nbconvert's own page loads MathJax, require.js and the widgets' code from servers. Here formulas become
MathML, which browsers draw themselves, and a widget becomes what it last showed.
"""

import html
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import BaseLoader, DictLoader, pass_context
from latex2mathml.converter import convert
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from traitlets import default

from workbook.unit import BEGIN, END

TEMPLATES = Path(__file__).parent / "templates"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
CONTENTS = "<!-- contents -->"
"""Where the page's template has its list of sections."""
_TO_A_NOTEBOOK = re.compile(r"\]\((?:\.\./)?(?:[^)/]+/)?([^)/]+)\.ipynb\)")


class BadFormula(ValueError):
    """A formula that cannot be drawn; the message quotes it."""


@dataclass(frozen=True, slots=True)
class Page:
    """A unit's page, as the index lists it."""

    unit: str
    title: str
    exercises: int
    points: float


def write_page(executed: Path, page: Page, directory: Path) -> Path:
    """Write the page of an executed notebook as `directory`/UNIT.html, and return where it is."""
    notebook = nbformat.read(executed, as_version=4)
    static_notebook(notebook)
    notebook.metadata["title"] = page.title
    exporter = PageExporter(  # type: ignore[no-untyped-call]  # nbconvert's constructor has no types.
        template_name="page", extra_template_basedirs=[str(TEMPLATES)]
    )
    text, _ = exporter.from_notebook_node(notebook)
    text = text.replace(CONTENTS, _contents(text))
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{page.unit}.html"
    path.write_text(text)
    return path


def _contents(page: str) -> str:
    """Links to the sections and exercises of a page, as a list."""
    found = re.findall(r'<h([23]) id="([^"]+)">(.*?)<a class="anchor-link"', page, flags=re.DOTALL)
    items = "".join(
        f'<li class="level-{level}"><a href="#{anchor}">{re.sub("<[^>]+>", "", words).strip()}</a></li>'
        for level, anchor, words in found
    )
    return f"<ol>{items}</ol>"


def write_index(pages: Sequence[Page], directory: Path) -> Path:
    """Write the list of all units as `directory`/index.html, and return where it is."""
    rows = "\n".join(
        f'<li><a href="{page.unit}.html">{html.escape(page.title)}</a> '
        f"<small>{page.unit} · {page.exercises} exercises · {page.points:g} points</small></li>"
        for page in pages
    )
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "index.html"
    path.write_text((TEMPLATES / "index.html").read_text().replace("<!-- units -->", rows))
    return path


def static_notebook(notebook: NotebookNode) -> None:
    """Turn a notebook, in place, into one that says the same without a kernel or a script."""
    models = notebook.metadata.pop("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    # What papermill was given belongs to the run, not to the text.
    notebook.cells = [c for c in notebook.cells if "injected-parameters" not in c.metadata.get("tags", [])]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _TO_A_NOTEBOOK.sub(r"](\1.html)", cell.source)
        if cell.cell_type == "code":
            cell.source = without_markers(cell.source)
            if cell.source.startswith("%%"):
                # Else the whole cell counts as the magic's text, without colours.
                cell.metadata["magics_language"] = "python"
            cell.outputs = [shown for output in cell.outputs for shown in _static_outputs(output, models)]


def without_markers(source: str) -> str:
    """A solution without the lines that mark it."""
    return "\n".join(line for line in source.split("\n") if line.strip() not in (BEGIN, END))


def _static_outputs(output: NotebookNode, models: dict[str, Any]) -> Iterator[NotebookNode]:
    """The output itself, or what the widget that it shows showed last."""
    view = output.get("data", {}).get(WIDGET_VIEW)
    if view is None:
        yield output
        return
    for shown in _outputs_within(view["model_id"], models):
        yield nbformat.from_dict(shown)


def _outputs_within(model_id: str, models: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The outputs that a widget and those in it hold, from top to bottom."""
    state = models.get(model_id, {}).get("state", {})
    yield from state.get("outputs", ())
    for child in state.get("children", ()):
        yield from _outputs_within(child.removeprefix("IPY_MODEL_"), models)


def mathml(formula: str, display: str = "inline") -> str:
    """A LaTeX formula as MathML. Raises BadFormula."""
    try:
        return _mended(convert(formula, display=display))
    except Exception as error:  # The library has a dozen kinds, and IndexError for some formulas.
        raise BadFormula(f"the formula {formula!r} cannot be drawn ({type(error).__name__})") from error


_NAME = "<mi>(?:arg|cos|cosh|det|dim|exp|ln|log|sin|sinh|tan|tanh)</mi>"
_FUNCTION = f"(?<!<msub>)(?<!<msup>){_NAME}|<msub>{_NAME}<m[in]>[^<]*</m[in]></msub>"
_THIN_SPACE = '<mspace width="0.167em" />'
_MENDS = (
    # Corners of a ceiling or a floor are brackets, not names.
    (r"<mi>(&#x0(?:2308|230A);)</mi>", r'<mo form="prefix" stretchy="false">\1</mo>'),
    (r"<mi>(&#x0(?:2309|230B);)</mi>", r'<mo form="postfix" stretchy="false">\1</mo>'),
    # As TeX has it, a thin space stands between a function and what is no operator and no bracket.
    (rf"({_FUNCTION})(?=<m(?!o\b))", rf"\1{_THIN_SPACE}"),
    (rf"(</(?:mi|mn|msub|msup|msubsup|mfrac|msqrt)>)(?={_FUNCTION})", rf"\1{_THIN_SPACE}"),
    # Of two large brackets one has an exponent, and would stay small.
    (r'<mo minsize="([\d.]+em)" maxsize="\1">', r'<mo stretchy="false" mathsize="\1">'),
)
"""Regular expressions and what takes their place in what latex2mathml writes."""


def _mended(formula: str) -> str:
    """MathML that browsers draw as TeX would."""
    for found, mend in _MENDS:
        formula = re.sub(found, mend, formula)
    return formula


_LONGEST_WHOLE = 40
"""Characters of a word of code that is kept on one line."""


class MathMLRenderer(IPythonRenderer):
    """Markdown with its formulas as MathML."""

    def codespan(self, text: str) -> str:
        """An option such as `--ntasks-per-node` is not broken at its hyphens."""
        code: str = super().codespan(text)
        whole = "-" in text and " " not in text and len(text) <= _LONGEST_WHOLE
        return code.replace("<code>", '<code style="white-space:nowrap">', 1) if whole else code

    def inline_math(self, body: str) -> str:
        return mathml(body)

    def block_math(self, body: str) -> str:
        return mathml(body, display="block")

    def latex_environment(self, name: str, body: str) -> str:
        return mathml(f"\\begin{{{name}}}{body}\\end{{{name}}}", display="block")


class ForgivingRenderer(MathMLRenderer):
    """The same, but a formula that cannot be drawn stays as it was typed."""

    def inline_math(self, body: str) -> str:
        with suppress(BadFormula):
            return super().inline_math(body)
        return IPythonRenderer.inline_math(self, body)

    def block_math(self, body: str) -> str:
        with suppress(BadFormula):
            return super().block_math(body)
        return IPythonRenderer.block_math(self, body)

    def latex_environment(self, name: str, body: str) -> str:
        with suppress(BadFormula):
            return super().latex_environment(name, body)
        return IPythonRenderer.latex_environment(self, name, body)


class PageExporter(HTMLExporter):
    """nbconvert's HTML exporter with formulas as MathML."""

    renderer = MathMLRenderer

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        attachments = context.get("cell", {}).get("attachments", {})
        renderer = self.renderer(escape=False, attachments=attachments)
        return MarkdownWithMath(renderer=renderer).render(source)


class FeedbackExporter(PageExporter):
    """The same for nbgrader's feedback, in which students may have written any formula."""

    renderer = ForgivingRenderer

    @default("extra_loaders")
    def _without_mathjax(self) -> list[BaseLoader]:
        """In place of nbconvert's macro that loads MathJax, which nbgrader's template calls."""
        return [DictLoader({"mathjax.html.j2": "{% macro mathjax() %}{% endmacro %}"})]
