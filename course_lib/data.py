"""The data sets of the units. `load("digits")` and `load_text()` need no network.

Nothing is downloaded unasked.

Shapes: N samples, C channels, S pixels a side; B samples a batch, T tokens a sample.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from torch.utils.data import TensorDataset

from course_lib.home import course_home
from course_lib.torchvision_compat import import_torchvision

VARIABLE = "COURSE_DATA"
"""Environment variable that names the folder of the data sets, such as one that a whole site shares."""

TEST_SHARE = 0.2
"""Of scikit-learn's digits, which come without a split of their own, this share is kept for testing."""

TEXT_TEST_SHARE = 0.1
"""Of the text this share, its end, is kept for testing."""


class DataUnavailable(RuntimeError):
    """A data set is unknown, or is not there and could not be had. The message says what to do."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the sentence alone, without the frames of this library."""
        return [f"{type(self).__name__}: {self}"]


class Samples(TensorDataset):
    """Images [N, C, S, S], float32 from 0 to 1, and labels [N], int64. `samples[i]` is (image, label)."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        super().__init__(images, labels)
        self.images = images
        self.labels = labels

    def batch(self, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """The samples at `indices` [B], on the device: images [B, C, S, S] and labels [B]."""
        return self.images[indices].to(device), self.labels[indices].to(device)

    def __repr__(self) -> str:
        return f"Samples({len(self)} images of shape {tuple(self.images.shape[1:])})"


@dataclass(frozen=True, slots=True)
class Dataset:
    """A classification task: what to train on, what to test on, and what the labels mean."""

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, S, S) of every image."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width


def load(name: str = "digits", *, download: bool = False) -> Dataset:
    """The data set of this name: "digits", "fashion_mnist" or "cifar10".

    digits: 1,797 grey images of 8 x 8 pixels; they come with scikit-learn. One fifth of each class is for
        testing, always the same.
    fashion_mnist: 70,000 grey images of 28 x 28 pixels (H. Xiao et al., arXiv:1708.07747).
    cifar10: 60,000 colour images of 32 x 32 pixels (A. Krizhevsky, 2009).
    download: fetch it if it is not in `data_folder()`. However many ranks ask at once on a shared file
        system, one of them downloads and the others wait.

    Raises DataUnavailable for an unknown name, and for a data set that is not there and cannot be had.
    """
    if name == "digits":
        return _digits()
    if name not in _FROM_TORCHVISION:
        known = ", ".join(f'"{known}"' for known in ("digits", *_FROM_TORCHVISION))
        raise DataUnavailable(f'There is no data set "{name}". The data sets are {known}.')
    if download and not _is_there(name):
        _download(name)
    if not _is_there(name):
        raise DataUnavailable(_how_to_get(name))
    return _from_torchvision(name)


class TextWindows:
    """A text in windows of T + 1 tokens. The last of each is the first of the next: each is predicted once.

    `windows[i]` is (inputs, targets), both [T], int64: each target is the token that follows. What is left at
    the end of the text and fills no window is not used.
    """

    def __init__(self, tokens: Tensor, length: int) -> None:
        """tokens: the text, 1-D, of integers. length: T. Raises ValueError where there is no window."""
        if not 0 < length < len(tokens):
            raise ValueError(f"{len(tokens)} tokens make no window of {length} + 1. Take a length from 1 on.")
        self.tokens = tokens
        self.length = length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"There is no window {index}: they go from 0 to {len(self) - 1}.")
        inputs_BT, targets_BT = self.batch(torch.tensor([index]))
        return inputs_BT[0], targets_BT[0]

    def batch(self, indices: Tensor, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """The windows at `indices` [B], on the device: inputs_BT and targets_BT."""
        places = indices.unsqueeze(1) * self.length + torch.arange(self.length + 1)
        window = self.tokens[places].long().to(device)
        return window[:, :-1], window[:, 1:]

    def __repr__(self) -> str:
        return f"TextWindows({len(self)} windows of {self.length} + 1 tokens)"


@dataclass(frozen=True, slots=True)
class Text:
    """A text to learn the next token of. A token is a byte of its UTF-8, so the vocabulary has 256."""

    train: TextWindows
    test: TextWindows
    vocabulary: int = 256

    @staticmethod
    def decode(tokens: Tensor) -> str:
        """The characters that tokens [T] stand for; what is none, such as half of one, becomes U+FFFD."""
        return bytes(tokens.tolist()).decode("utf-8", errors="replace")


def load_text(length: int = 64) -> Text:
    """The part of Python's own documentation that comes with Python, half a million bytes, as windows.

    It is what `help("for")` shows: `pydoc_data.topics`, in the order of the topics' names. Its last tenth is
    for testing. Each version of Python has its own, so a model's loss differs a little between them.
    length: T of a window.

    Raises DataUnavailable where Python was installed without it.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise DataUnavailable(
            f"This Python has no pydoc_data.topics, the text of its documentation ({error}). Take one that "
            f"was installed with its whole standard library."
        ) from error
    text = "\n\n".join(topics[name] for name in sorted(topics)).encode()
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    cut = round(len(tokens) * (1 - TEXT_TEST_SHARE))
    return Text(TextWindows(tokens[:cut], length), TextWindows(tokens[cut:], length))


def data_folder() -> Path:
    """Where data sets are kept: `$COURSE_DATA` if that is set, else `data` in the user's `course_home()`."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser().resolve() if named else course_home() / "data"


def _digits() -> Dataset:
    """scikit-learn's copy of the optical digits of E. Alpaydin and C. Kaynak (UCI, 1998), one fixed split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    raw = load_digits()
    train, test = train_test_split(
        np.arange(len(raw.target)), test_size=TEST_SHARE, random_state=0, stratify=raw.target
    )
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(raw.target, dtype=torch.int64)
    names = tuple(str(name) for name in raw.target_names)
    return Dataset(
        "digits", Samples(images[train], labels[train]), Samples(images[test], labels[test]), names
    )


_FROM_TORCHVISION = {"fashion_mnist": "FashionMNIST", "cifar10": "CIFAR10"}
"""Our name -> the class in torchvision.datasets."""


def _is_there(name: str) -> bool:
    """A data set's folder appears in one step, when its download is complete."""
    return (data_folder() / name).is_dir()


def _open(name: str, folder: Path, *, train: bool, download: bool) -> Any:
    """torchvision's own data set, kept in `folder`."""
    made: Callable[..., Any] = getattr(import_torchvision().datasets, _FROM_TORCHVISION[name])
    return made(root=folder, train=train, download=download)


def _from_torchvision(name: str) -> Dataset:
    folder = data_folder() / name
    try:
        parts = [_open(name, folder, train=train, download=False) for train in (True, False)]
    except (RuntimeError, OSError, ValueError) as error:
        raise DataUnavailable(
            f"{folder} does not hold the data set {name} as torchvision keeps it ({error}). "
            f"Delete that folder and get it anew. {_how_to_get(name)}"
        ) from error
    train, test = (Samples(_images(part.data), torch.as_tensor(part.targets).long()) for part in parts)
    return Dataset(name, train, test, tuple(parts[0].classes))


def _images(pixels: Any) -> Tensor:
    """[N, S, S] grey or [N, S, S, C] colour, bytes, as float32 [N, C, S, S] from 0 to 1."""
    images = torch.as_tensor(pixels)
    images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2)
    return images.to(torch.float32, memory_format=torch.contiguous_format) / 255


def _download(name: str) -> None:
    """Fetch a data set into its folder. Of all processes that try at once, one does; the others wait for it.

    It is complete or not there: what an interrupted download leaves is thrown away by the next.
    """
    folder = data_folder()
    partial = folder / f"{name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{name}.lock"):
            if _is_there(name):
                return
            shutil.rmtree(partial, ignore_errors=True)
            _open(name, partial, train=True, download=True)
            partial.rename(folder / name)
    except (RuntimeError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise DataUnavailable(f"{name} could not be downloaded ({reason}). {_how_to_get(name)}") from error


def _how_to_get(name: str) -> str:
    """What to do about a data set that is not there."""
    return (
        f"The data set {name} belongs in {data_folder() / name}. Where there is a network, run "
        f'`from course_lib.data import load; load("{name}", download=True)` once; on a cluster that is '
        f"usually a login node. Or copy that folder from a machine that has it, or set ${VARIABLE} to the "
        f'folder that holds it. The data set "digits" is always there.'
    )
