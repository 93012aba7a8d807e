"""Images and one-hot labels of a file such as Keras' mnist.npz, the part of one rank of several."""

import sys

import numpy as np

CLASSES = 10


def get_dataset(rank=0, size=1):
    """(images, labels) to train on and (images, labels) to validate on: every size-th sample, from rank on.

    Images [N, S, S, 1], float32 from 0 to 1; labels [N, 10], float32, one-hot. The file is the script's first
    argument, and has x_train, y_train, x_test, y_test: images [N, S, S], bytes, and labels [N].
    """
    with np.load(sys.argv[1]) as file:
        parts = [(file[f"x_{part}"], file[f"y_{part}"]) for part in ("train", "test")]
    (x_train, y_train), (x_test, y_test) = [
        (
            images[rank::size, :, :, None].astype("float32") / 255,
            np.eye(CLASSES, dtype="float32")[labels[rank::size]],
        )
        for images, labels in parts
    ]
    return (x_train, y_train), (x_test, y_test)
