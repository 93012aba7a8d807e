"""Pictures for the text of the units: what the operations do, where ranks sit, what overlaps what.

They run in the kernel, know no run, and import the style, the cluster and the semantics of operations.
"""

from course_lib.figures.pictures.checkpoints import moments_picture
from course_lib.figures.pictures.collectives import COLLECTIVES, collective_picture, collectives_picture
from course_lib.figures.pictures.data_parallel import (
    bucket_picture,
    speedup_picture,
    weighted_average_picture,
)
from course_lib.figures.pictures.growth import frameworks_picture, models_picture
from course_lib.figures.pictures.horovod import negotiation_picture, server_and_ring_picture
from course_lib.figures.pictures.machines import layout_picture, ring_picture
from course_lib.figures.pictures.nodes import (
    binding_picture,
    cluster_picture,
    network_hops,
    placement_picture,
)
from course_lib.figures.pictures.tensor_parallel import branches_picture, cut_picture
from course_lib.figures.pictures.trees import tree_picture
from course_lib.figures.pictures.work import serial_and_parallel_picture

__all__ = [
    "COLLECTIVES",
    "binding_picture",
    "branches_picture",
    "bucket_picture",
    "cluster_picture",
    "collective_picture",
    "collectives_picture",
    "cut_picture",
    "frameworks_picture",
    "layout_picture",
    "models_picture",
    "moments_picture",
    "negotiation_picture",
    "network_hops",
    "placement_picture",
    "ring_picture",
    "serial_and_parallel_picture",
    "server_and_ring_picture",
    "speedup_picture",
    "tree_picture",
    "weighted_average_picture",
]
