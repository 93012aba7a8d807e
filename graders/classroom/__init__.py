"""A whole class: the pool, the results, the gradebook, the pages."""
