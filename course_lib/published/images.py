"""Image networks under data parallelism: FireCaffe, Horovod's documentation, Goyal et al. 2017.

One GPU's time for a step comes from a measurement of one GPU. A third of it is forward (an operation of
forward has two in backward); backward passes the layers from the last to the first, each in proportion to its
multiplications. Gradients are fused in their order into buckets, and a bucket is summed by a ring as soon as
its last gradient is there, one bucket after the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.cluster.topology import Cluster
from course_lib.published.machines import TITAN, ethernet
from course_lib.published.row import Row
from course_lib.runtime.communication.costs import seconds_of
from course_lib.runtime.simulator.network_model import Timing
from course_lib.torchvision_compat import import_torchvision


@dataclass(frozen=True, slots=True)
class _Layer:
    """multiplications: of an image's forward. nbytes: of its gradients in 32 bits."""

    multiplications: float
    nbytes: int


def rows() -> Iterator[Row]:
    """All rows of this module."""
    yield from _firecaffe()
    yield from _horovod()
    yield _goyal()


def _firecaffe() -> Iterator[Row]:
    """GoogLeNet on GPUs of Titan, 1,024 images a step: F. Iandola et al., CVPR 2016, table 4.

    One GPU takes 21 days, 32 are 20 times as fast, 128 are 47 times. 54 MB of gradients (table 2) go up a
    binomial tree, and weights down, after backward (section 5). Not counted, for we know of no numbers for
    them: reading and decoding images, copies between a GPU and its host, the sums on the way up.
    """
    seconds_an_image = 21 * 86_400 / (2_400_000 * 32)
    nbytes = 54_000_000
    for devices, speedup in ((32, 20), (128, 47)):
        alone = 1024 * seconds_an_image
        travelling = sum(seconds_of(name, nbytes, devices, TITAN) for name in ("reduce", "broadcast"))
        yield Row(
            "Iandola 2016",
            f"GoogLeNet on {devices} = {devices} x 1",
            "% of perfect scaling",
            100 * speedup / devices,
            100 * alone / devices / (alone / devices + travelling),
            inferred="2,400,000 steps of 32 images, as in Caffe's own GoogLeNet; PCIe 2.0 bounds a node",
        )


def _horovod() -> Iterator[Row]:
    """128 servers with 4 Pascal GPUs and 25 Gbit/s: docs/benchmarks.rst of Horovod.

    One P100 with 64 images: 142 a second with Inception V3, 154 with VGG-16, TensorFlow's benchmarks of May
    2017 (tensorflow/docs, site/en/r1/guide/performance/benchmarks.md). 64 MiB is Horovod's fusion threshold.
    For ResNet-101 (90 %) that source has no speed of one GPU.
    """
    models = import_torchvision().models
    with torch.device("meta"):
        networks = (
            ("Inception V3", models.inception_v3(aux_logits=False, init_weights=False), 299, 142, 90),
            ("VGG-16", models.vgg16(), 224, 154, 68),
        )
    for name, network, side, images_a_second, measured in networks:
        alone = 64 / images_a_second
        together = step_seconds(_layers(network, side), alone, ethernet(128, 4, gigabits=25), 64 * 2**20)
        yield Row(
            "Horovod 2018",
            f"{name} on 512 = 128 x 4",
            "% of perfect scaling",
            measured,
            100 * alone / together,
            inferred="a P100 is meant by Pascal",
        )


def _goyal() -> Row:
    """ResNet-50 on 32 servers of 8 P100 with 50 Gbit/s, against one: arXiv:1706.02677, sections 4 and 5.

    Backward takes 120 ms with 32 images, and gradients are summed within a server first, so that a ring joins
    the servers (section 4). About 90 % from 8 GPUs to 256 (abstract).
    """
    models = import_torchvision().models
    with torch.device("meta"):
        network = models.resnet50()
    alone = 1.5 * 0.120
    together = step_seconds(_layers(network, 224), alone, ethernet(32, 1, gigabits=50), 0)
    return Row(
        "Goyal 2017",
        "ResNet-50 on 256 = 32 x 8",
        "% of perfect scaling",
        90,
        100 * alone / together,
        inferred="forward takes half as long as backward",
    )


def step_seconds(layers: list[_Layer], alone: float, cluster: Cluster, bucket_bytes: int) -> float:
    """A step on all of a cluster's devices, if one takes `alone` seconds."""
    timing, members = Timing(cluster, cluster.size), tuple(range(cluster.size))
    whole = sum(layer.multiplications for layer in layers)
    now, end, held = alone / 3, 0.0, 0
    for position, layer in enumerate(reversed(layers), 1):
        now += alone * 2 / 3 * layer.multiplications / whole
        held += layer.nbytes
        if held and (held >= bucket_bytes or position == len(layers)):
            end, held = timing.collective("all_reduce", held, members, now), 0
    return max(now, end)


def _layers(network: nn.Module, side: int) -> list[_Layer]:
    """The layers that learn, in the order in which forward comes to them, on tensors without data."""
    found: list[_Layer] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        weight: Any = layer.weight
        nbytes = sum(parameter.nbytes for parameter in layer.parameters())
        found.append(_Layer(output[0].numel() * weight[0].numel() if weight.dim() > 1 else 0, nbytes))

    for layer in network.modules():
        if getattr(layer, "weight", None) is not None:
            layer.register_forward_hook(note)
    network.eval()(torch.empty(1, 3, side, side, device="meta"))
    return found
