"""A small unit for the tests of the build: one slider, one formula, one exercise."""

from dataclasses import dataclass
from pathlib import Path

NAME = "80_sample"

SOURCE = '''\
# %% [markdown]
# # A sample
#
# The mean is $\\frac{1}{p}\\sum_{r=0}^{p-1} g_r$.

# %% tags=["parameters"]
ranks = 4
on = "simulated"

# %%
import ipywidgets
from graders import check

# %% demo=true
@ipywidgets.interact(n=(1, 10))
def show(n=3):
    print("n is", n)

# %% demo=true jupyter={"source_hidden": true}
assert 1 + 1 == 2

# %% [markdown]
# ## One more

# %% exercise="one_more" points=2
def one_more(number: int) -> int:
    """The number after `number`."""
    ### BEGIN SOLUTION
    return number + 1
    ### END SOLUTION
'''


@dataclass(frozen=True)
class Effort:
    points: float = 2
    minutes: int = 5
    difficulty: int = 1


EFFORTS = {"one_more": Effort()}


def write_unit(root: Path, source: str = SOURCE, name: str = NAME) -> Path:
    """Write a unit to the solutions of a workbook in `root`."""
    path = root / "solutions" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    return path
