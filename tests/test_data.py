"""The data sets: always the same, never fetched unasked, fetched once and completely."""

import gzip
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from course_lib import data
from course_lib.data import DataUnavailable, Samples, TextWindows, load, load_text
from course_lib.torchvision_compat import import_torchvision


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "data"))
    return tmp_path / "data"


# --- digits


def test_digits_have_the_promised_form() -> None:
    # Images are float32 from 0 to 1, labels int64, and every class is there in both parts.
    digits = load("digits")
    for part in (digits.train, digits.test):
        assert part.images.dtype == torch.float32
        assert part.labels.dtype == torch.int64
        assert part.images.shape == (len(part), *digits.image_shape)
        assert part.images.min() == 0
        assert part.images.max() == 1
        assert part.labels.unique().tolist() == list(range(len(digits.classes)))
    assert digits.image_shape == (1, 8, 8)


def test_digits_are_split_always_alike() -> None:
    # Whatever the random state is, training and test set are the same, and no image is in both.
    torch.manual_seed(1)
    first = load("digits")
    torch.manual_seed(2)
    again = load("digits")
    assert torch.equal(first.test.images, again.test.images)
    assert torch.equal(first.train.labels, again.train.labels)
    assert len(first.train) + len(first.test) == 1797
    assert not set(map(_key, first.train.images)) & set(map(_key, first.test.images))


def test_writing_into_the_images_spoils_no_later_load() -> None:
    # Who normalises in place does so to a copy of their own.
    load("digits").train.images.zero_()
    assert load("digits").train.images.max() == 1


def test_samples_are_a_torch_dataset() -> None:
    # One index gives an image and its label, a slice gives many.
    samples = Samples(torch.rand(5, 1, 4, 4), torch.arange(5))
    image, label = samples[3]
    assert image.shape == (1, 4, 4)
    assert label == 3
    assert samples[:2][0].shape == (2, 1, 4, 4)
    assert len(samples) == 5


def _key(image: Tensor) -> bytes:
    return bytes(image.numpy().tobytes())


# --- text


def test_every_token_is_predicted_once() -> None:
    # Invariant: the targets of all windows, one after the other, are the text from its second token on; each
    # input stands just before its target; what fills no window is left out.
    windows = TextWindows(torch.arange(23, dtype=torch.uint8), 5)
    inputs, targets = windows.batch(torch.arange(len(windows)), torch.device("cpu"))
    assert targets.flatten().tolist() == list(range(1, 21))
    assert torch.equal(inputs + 1, targets)
    assert (inputs.dtype, targets.dtype) == (torch.int64, torch.int64)
    assert [pair[1].tolist() for pair in windows] == targets.tolist()


def test_the_text_is_pythons_documentation() -> None:
    # Always the same; its parts are readable and follow each other without a common token.
    text = load_text(100)
    assert torch.equal(text.train.tokens, load_text(100).train.tokens)
    whole = text.decode(torch.cat([text.train.tokens, text.test.tokens]))
    assert 'The "for" statement is used to iterate' in " ".join(whole.split())
    assert "\ufffd" not in whole
    assert len(text.test.tokens) == pytest.approx(0.1 * len(whole.encode()), abs=1)
    assert int(text.train.tokens.max()) < text.vocabulary


@pytest.mark.parametrize("length", [0, 5, -1])
def test_a_text_too_short_for_a_window_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="make no window"):
        TextWindows(torch.arange(5), length)


def test_a_python_without_its_documentation_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataUnavailable, match="whole standard library"):
        load_text()


# --- what is not there


def test_unknown_name_is_answered_with_those_that_exist() -> None:
    with pytest.raises(DataUnavailable, match=r'no data set "mnist".*"digits", "fashion_mnist", "cifar10"'):
        load("mnist")


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_nothing_is_downloaded_unasked(name: str, folder: Path) -> None:
    # The error says where the data belong and how to get them, and nothing has been written.
    with pytest.raises(DataUnavailable) as raised:
        load(name)
    assert str(folder / name) in str(raised.value)
    assert "download=True" in str(raised.value)
    assert '"digits"' in str(raised.value)
    assert not folder.exists()


def test_failed_download_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a network the reason is told, and what to do; and nothing looks as if the data were there.
    monkeypatch.setattr(data, "_open", _no_network)
    for _ in range(2):
        with pytest.raises(
            DataUnavailable, match=r"could not be downloaded \(no route to host\).*COURSE_DATA"
        ):
            load("fashion_mnist", download=True)


def _no_network(name: str, folder: Path, *, train: bool, download: bool) -> Any:
    (folder / "half").mkdir(parents=True)
    raise OSError("no route to host")


def test_broken_data_are_told_from_missing_data(folder: Path) -> None:
    (folder / "fashion_mnist").mkdir(parents=True)
    with pytest.raises(DataUnavailable, match=r"does not hold the data set.*Delete that folder"):
        load("fashion_mnist")


# --- downloading


def test_of_many_that_download_at_once_one_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Eight ranks ask at the same time; the files are fetched once, and everybody finds them complete.
    downloads = []

    def slow_download(name: str, place: Path, *, train: bool, download: bool) -> Any:
        if download:
            downloads.append(place)
            place.mkdir()
            time.sleep(0.05)
            (place / "complete").touch()
        return None

    monkeypatch.setattr(data, "_open", slow_download)
    found: list[bool] = []

    def rank() -> None:
        data._download("cifar10")
        found.append((folder / "cifar10" / "complete").exists())

    ranks = [threading.Thread(target=rank) for _ in range(8)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    assert len(downloads) == 1
    assert found == [True] * 8


def test_interrupted_download_starts_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What was left half-written is not taken for the data, nor mixed with them.
    def fetch(name: str, place: Path, *, train: bool, download: bool) -> Any:
        place.mkdir()
        (place / "first").touch()

    (folder / "cifar10.partial").mkdir(parents=True)
    (folder / "cifar10.partial" / "torn").touch()
    monkeypatch.setattr(data, "_open", fetch)
    data._download("cifar10")
    assert sorted(path.name for path in (folder / "cifar10").iterdir()) == ["first"]
    assert not (folder / "cifar10.partial").exists()


# --- torchvision


def test_fashion_mnist_is_read_through_torchvision(folder: Path) -> None:
    # Files in the format that torchvision keeps become images from 0 to 1 with a channel.
    pixels = torch.arange(3 * 28 * 28).remainder(256).to(torch.uint8).reshape(3, 28, 28)
    raw = folder / "fashion_mnist" / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 3), ("t10k", 2)):
        _write_idx(raw / f"{part}-images-idx3-ubyte", pixels[:count])
        _write_idx(raw / f"{part}-labels-idx1-ubyte", torch.arange(count, dtype=torch.uint8))
    fashion = load("fashion_mnist")
    assert fashion.image_shape == (1, 28, 28)
    assert (len(fashion.train), len(fashion.test)) == (3, 2)
    assert fashion.classes[0] == "T-shirt/top"
    assert torch.equal(fashion.train.images, pixels.unsqueeze(1) / 255)
    assert fashion.train.labels.tolist() == [0, 1, 2]
    assert fashion.train.labels.dtype == torch.int64


def _write_idx(path: Path, values: Tensor) -> None:
    """MNIST's format: two zero bytes, the type (8: bytes), the number of dimensions, their sizes, data."""
    header = struct.pack(">BBBB", 0, 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(header + values.numpy().tobytes())
    with gzip.open(path.with_name(f"{path.name}.gz"), "wb") as compressed:
        compressed.write(path.read_bytes())


def test_colour_images_get_their_channels_first() -> None:
    # CIFAR-10 comes as bytes [N, S, S, C].
    pixels = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8)
    images = data._images(pixels.numpy())
    assert images.shape == (2, 3, 32, 32)
    assert images.is_contiguous()
    assert torch.equal(images[1, 2], pixels[1, :, :, 2] / 255)


def test_torchvision_works_beside_this_torch() -> None:
    # Whether its compiled operators load or not: data sets, transforms and models can be used.
    torchvision = import_torchvision()
    assert import_torchvision() is torchvision
    from torchvision.transforms import v2

    assert v2.Resize(4)(torch.rand(3, 8, 8)).shape == (3, 4, 4)
    assert torchvision.models.resnet18(num_classes=7)(torch.rand(2, 3, 32, 32)).shape == (2, 7)
