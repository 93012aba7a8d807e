"""The collectives of unit 07: answers that ranks call, judged by the cases of a `Setting`."""

from functools import partial

from graders.units.ranks.stage import on_ranks
from graders.units.unit_07.cases import Setting, possible

collective = partial(on_ranks, base=Setting(), possible=possible)
"""Registers one, see `on_ranks`."""
