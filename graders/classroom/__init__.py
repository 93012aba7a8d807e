"""A whole class: the pool, the results, the gradebook, the pages."""

from graders.submissions import lazy_iri_grammar as _lazy_iri_grammar  # noqa: F401
