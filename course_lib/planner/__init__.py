"""Plans of how a model is spread over a cluster: operators, layouts, what they cost, and running them.

Read `layouts` first: an operator is an einsum, a layout says how a tensor lies on a mesh, and a strategy is
one way to compute the operator there. `graph` takes the operators from a model's code, and `plan` is data
that says who computes what. `costs` predicts a step of a plan, and `execution` does it, on any engine; both
use `shards`, one rank's part, and `moving`, the collectives between operators. The search itself comes in as
an argument.
"""

from course_lib.planner.costs import Model, Planner, Prediction
from course_lib.planner.dimensions import dimensions, split_along
from course_lib.planner.execution import PlannedRank, execute, parameters_of, seconds_of_step
from course_lib.planner.graph import INPUT, Graph, NotPlannable, Operator, trace
from course_lib.planner.layouts import Einsum, Placements, Strategy, written
from course_lib.planner.moving import WHOLE, Layout
from course_lib.planner.plan import BadPlan, ParallelPlan
from course_lib.planner.schedules import torchs_1f1b
from course_lib.planner.shards import made, wanted

__all__ = [
    "INPUT",
    "WHOLE",
    "BadPlan",
    "Einsum",
    "Graph",
    "Layout",
    "Model",
    "NotPlannable",
    "Operator",
    "ParallelPlan",
    "Placements",
    "PlannedRank",
    "Planner",
    "Prediction",
    "Strategy",
    "dimensions",
    "execute",
    "made",
    "parameters_of",
    "seconds_of_step",
    "split_along",
    "torchs_1f1b",
    "trace",
    "wanted",
    "written",
]
