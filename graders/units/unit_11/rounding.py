"""How far right numbers may be apart where they are added in another order."""

import torch
from torch import Tensor


def rounding(like: Tensor) -> float:
    """The relative error that some dozens of sums may make in like's dtype, float32 or float64."""
    return 100 * torch.finfo(like.dtype).eps
