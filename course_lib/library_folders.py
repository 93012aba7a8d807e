"""Where Python finds libraries: in this environment, in the one below it, in a site's module."""

import os
import sys
from collections.abc import Iterator

NAMES = ("site-packages", "dist-packages")
"""What such folders are called; the second is Debian's name, which images of NVIDIA's have as well."""


def library_folders() -> Iterator[str]:
    """The folders on Python's path that hold libraries. Those of one's own work have other names."""
    return (folder for folder in sys.path if os.path.basename(folder) in NAMES)
