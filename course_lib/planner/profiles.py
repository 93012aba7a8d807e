"""What the layers of a model compute, hand on and weigh: counted on tensors without data."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib.torchvision_compat import import_torchvision

PIXELS = 224
"""The side of the images that are counted with."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What each layer of a model takes for a batch: operations of forward and backward, bytes that it hands
    on, and bytes of weights.
    """

    operations: list[int]
    activation_bytes: list[int]
    weight_bytes: list[int]


def profile(layers: Iterable[nn.Module], batch: int) -> Profile:
    """Count the layers of a network for images: three times the operations of forward, in float32."""
    found = Profile([], [], [])
    x = torch.empty(batch, 3, PIXELS, PIXELS, device="meta")
    for layer in layers:
        with FlopCounterMode(display=False) as counter:
            x = layer(x)
        found.operations.append(3 * counter.get_total_flops())
        found.activation_bytes.append(4 * x.numel())
        found.weight_bytes.append(4 * sum(parameter.numel() for parameter in layer.parameters()))
    return found


def vgg16(batch: int) -> Profile:
    """VGG-16, layer by layer: 40 of them."""
    with torch.device("meta"):
        model = import_torchvision().models.vgg16()
    return profile([*model.features, model.avgpool, nn.Flatten(), *model.classifier], batch)


def resnet50(batch: int) -> Profile:
    """ResNet-50, its stem and head layer by layer and each block as one: 23 in all."""
    with torch.device("meta"):
        model = import_torchvision().models.resnet50()
    blocks = [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]
    stem = [model.conv1, model.bn1, model.relu, model.maxpool]
    return profile([*stem, *blocks, model.avgpool, nn.Flatten(), model.fc], batch)
