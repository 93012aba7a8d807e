"""Plans of how a model is spread over a cluster: operators, layouts, what they cost, and running them.

Read `layouts` first: an operator is an einsum, a layout says how a tensor lies on a mesh, and a strategy is
one way to compute the operator there. The search itself comes in as an argument.
"""

from course_lib.planner.layouts import Einsum, Placements, Strategy

__all__ = ["Einsum", "Placements", "Strategy"]
