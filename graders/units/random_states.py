"""The random states that a driver looks at before and after an answer."""

import random

import numpy as np
import torch


def random_states() -> dict[str, bytes]:
    """This rank's random state in each library that has one."""
    numpy_state = np.random.get_state()
    return {
        "torch": bytes(torch.get_rng_state().numpy()),
        "random": repr(random.getstate()).encode(),
        "numpy.random": repr(
            [part.tobytes() if isinstance(part, np.ndarray) else part for part in numpy_state]
        ).encode(),
    }
