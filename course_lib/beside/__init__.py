"""Libraries beside the workbook's own packages, such as Horovod: recipes, and where they are installed.

`missing(name)` is the one question whether a library is there; the command `course beside` installs. It runs
in kernels, in ranks and in the command `course`: so it imports neither torch nor anything of the course.
"""

from course_lib.beside.environments import interpreter, missing
from course_lib.beside.recipes import BesideFailed

__all__ = ["BesideFailed", "interpreter", "missing"]
