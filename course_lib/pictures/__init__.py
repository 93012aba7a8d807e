"""Pictures for the text of the units: what the operations do, where ranks sit, what overlaps what."""

from course_lib.pictures.collectives import COLLECTIVES, collective_picture
from course_lib.pictures.machines import layout_picture, ring_picture
from course_lib.pictures.training import bucket_picture, speedup_picture, weighted_average_picture

__all__ = [
    "COLLECTIVES",
    "bucket_picture",
    "collective_picture",
    "layout_picture",
    "ring_picture",
    "speedup_picture",
    "weighted_average_picture",
]
