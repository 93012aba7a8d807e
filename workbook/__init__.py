"""From the sources in `solutions/` to the notebooks that students open, the solved ones, and the pages."""

from graders.submissions import lazy_iri_grammar as _lazy_iri_grammar  # noqa: F401
