"""What students hand in: notebooks and Python files, read without running them."""

from graders.submissions import lazy_iri_grammar as _lazy_iri_grammar  # noqa: F401
