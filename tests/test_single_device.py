"""What unit 01 stands on: models, batches, the loop, the count of activations, the picture of the steps."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from course_lib.data import Samples, load
from course_lib.figures.pictures.training_steps import STEPS, steps_picture
from course_lib.figures.style import figure_png
from course_lib.home import VARIABLE
from course_lib.models import SmallCNN, parameter_count
from course_lib.notebook.curves import LiveCurves
from course_lib.training.activation_memory import activation_bytes
from course_lib.training.single_device import Batches, new_batches, random_shift, train_epoch

CPU = torch.device("cpu")


# --- models


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (1, 28), (3, 32), (2, 5)])
def test_small_cnn_takes_images_of_every_data_set(channels: int, size: int) -> None:
    logits = SmallCNN(channels, classes=7, size=size)(torch.rand(3, channels, size, size))
    assert logits.shape == (3, 7)


def test_small_cnn_depends_on_no_other_sample() -> None:
    # No layer mixes samples: a batch gives what its samples give one by one.
    torch.manual_seed(0)
    model, images = SmallCNN(1, 10, 8), torch.rand(5, 1, 8, 8)
    alone = torch.cat([model(image.unsqueeze(0)) for image in images])
    assert torch.allclose(model(images), alone, atol=1e-6)


def test_a_shared_parameter_counts_once() -> None:
    layer = nn.Linear(64, 16)
    assert parameter_count(nn.Sequential(layer, nn.ReLU(), layer)) == 64 * 16 + 16


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="size=3 is below 4"):
        SmallCNN(1, 10, 3)


def test_parameters_that_layers_share_count_once() -> None:
    shared = nn.Linear(4, 4, bias=False)
    frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)
    assert parameter_count(nn.Sequential(shared, shared, frozen)) == 16


# --- batches


def numbered(count: int) -> Samples:
    """Samples of which each is told by its label and its pixels."""
    return Samples(
        torch.arange(count).float().reshape(count, 1, 1, 1).expand(-1, 1, 4, 4), torch.arange(count)
    )


def test_batches_hold_every_sample_once() -> None:
    # In order or shuffled, the last batch shorter, as many as `len` says.
    in_order = Batches(numbered(10), 4, CPU)
    assert [len(labels) for _, labels in in_order] == [4, 4, 2]
    assert len(in_order) == 3
    assert torch.cat([labels for _, labels in in_order]).tolist() == list(range(10))

    shuffled = Batches(numbered(100), 7, CPU, shuffle=True)
    first, second = (torch.cat([labels for _, labels in shuffled]).tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second


def test_training_batches_are_shifted_and_test_batches_are_not() -> None:
    train, test = new_batches(load("digits"), 32, CPU)
    assert torch.equal(torch.cat([images for images, _ in test]), load("digits").test.images)
    assert train.prepare is random_shift
    assert train.shuffle


def test_shift_moves_by_at_most_a_pixel() -> None:
    # Every image is one of its nine shifts; over many images all nine occur.
    torch.manual_seed(0)
    images = torch.rand(200, 2, 6, 5)
    padded = functional.pad(images, (1, 1, 1, 1))
    shifts = torch.stack([padded[:, :, r : r + 6, c : c + 5] for r in range(3) for c in range(3)])
    matches = (shifts == random_shift(images)).flatten(2).all(dim=2)
    assert torch.equal(matches.sum(dim=0), torch.ones(200, dtype=torch.int64))
    assert matches.any(dim=1).all()


# --- the loop


def step(model: nn.Module, inputs: Tensor, targets: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def score(model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    model.eval()
    with torch.no_grad():
        parts = [(model(inputs), targets) for inputs, targets in loader]
    logits, targets = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    accuracy = (logits.argmax(1) == targets).float().mean().item()
    return functional.cross_entropy(logits, targets).item(), accuracy


def test_epoch_is_a_mean_over_samples() -> None:
    # Ten samples in batches of 4, 4 and 2: the short batch counts for two samples.
    sizes = []

    def size_as_loss(model: nn.Module, inputs: Tensor, targets: Tensor, _: object) -> Tensor:
        assert model.training
        sizes.append(len(targets))
        return torch.tensor(float(len(targets)))

    model = nn.Linear(1, 1).eval()
    mean = train_epoch(
        model, Batches(numbered(10), 4, CPU), torch.optim.SGD(model.parameters()), size_as_loss
    )
    assert sizes == [4, 4, 2]
    assert mean == pytest.approx((4 * 4 + 4 * 4 + 2 * 2) / 10)


def test_digits_are_learnt_to_97_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The unit's own recipe: over 97 % on the test set, with curves that outlive the training.
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    threads, losses = torch.get_num_threads(), list[float]()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        digits = load("digits")
        model = SmallCNN(1, 10, 8, dropout=0.25)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        train, test = new_batches(digits, 32, CPU)
        with LiveCurves("digits", total=20, unit="epoch") as curves:
            for _ in range(20):
                losses.append(train_epoch(model, train, optimizer, step))
                scheduler.step()
                test_loss, accuracy = score(model, test)
                curves.log(train_loss=losses[-1], test_loss=test_loss, test_accuracy=100 * accuracy)
    finally:
        torch.set_num_threads(threads)
    assert accuracy > 0.97
    assert losses[-1] < 0.2 < losses[0]
    assert "up to epoch 20" in LiveCurves.reload("digits").alt


# --- activations


def test_activations_are_counted_exactly() -> None:
    # A linear layer keeps its input for its weight's gradient, tanh keeps its output; both share one tensor.
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    assert activation_bytes(model, torch.rand(7, 3)) == 7 * 5 * 4


def test_activations_grow_with_the_batch_and_weights_do_not_count() -> None:
    torch.manual_seed(0)
    images = load("digits").train.images
    model = SmallCNN(1, 10, 8)
    of_one, of_ten = (activation_bytes(model, images[:count]) for count in (1, 10))
    assert of_ten == 10 * of_one
    with torch.no_grad():
        assert activation_bytes(model, images[:10]) == 0


# --- the picture


def test_picture_tells_all_fifteen_steps() -> None:
    picture = steps_picture()
    assert [step.number for step in STEPS] == list(range(1, 16))
    assert all(step.name.replace("\n", " ") in picture.alt for step in STEPS)
    assert len({(step.row, step.column) for step in STEPS}) == 15
    assert len(figure_png(picture)) > 10_000
