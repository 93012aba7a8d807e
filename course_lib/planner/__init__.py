"""Plans of how a model is spread over a cluster: operators, layouts, what they cost, and running them.

Read `layouts` first: an operator is an einsum, a layout says how a tensor lies on a mesh, and a strategy is
one way to compute the operator there. `graph` takes the operators from a model's code, and `plan` is data
that says who computes what. The search itself comes in as an argument.
"""

from course_lib.planner.graph import Graph, NotPlannable, Operator, trace
from course_lib.planner.layouts import Einsum, Placements, Strategy, written
from course_lib.planner.plan import BadPlan, Plan

__all__ = [
    "BadPlan",
    "Einsum",
    "Graph",
    "NotPlannable",
    "Operator",
    "Placements",
    "Plan",
    "Strategy",
    "trace",
    "written",
]
