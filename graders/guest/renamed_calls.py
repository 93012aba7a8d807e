"""What PyTorch says of its renamed collectives is no concern of a grading.

From 2.13 on PyTorch warns that `all_gather_into_tensor` and `reduce_scatter_tensor` have new names. Most
documentation has the old ones, and on an older PyTorch there are no others: both are right answers. So are
functional collectives by either name. What the warning prints would stand under the verdict, as if the
student's code had printed it.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_FUNCTIONAL = r"(_functional_collectives\.)?"
RENAMED = (
    rf"`torch\.distributed\.{_FUNCTIONAL}(all_gather(_into)?_tensor|reduce_scatter_tensor)\w*` is deprecated"
)
"""How these warnings begin."""


@contextmanager
def renamed_calls_unmentioned() -> Iterator[None]:
    """Nothing is said of the old names in here; of anything else it is, and afterwards all is as before."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", RENAMED, FutureWarning)
        yield
