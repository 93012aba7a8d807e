"""Models for the units' classifiers, small enough to train on two cores.

None has a batch norm: its statistics depend on how a batch is cut, and the units compare different cuts.

Shapes: B samples a batch, C channels, S pixels a side.
"""

from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Two blocks of convolutions, each of which halves the sides, then two linear layers.

    channels: C of the images, 1 for grey and 3 for colour. classes: how many. size: S, at least 4.
    width: feature maps of the first block; the second has twice as many.
    dropout: probability with which the first linear layer's outputs are set to zero while training.

    Images [B, C, S, S] to logits [B, classes].
    """

    def __init__(
        self, channels: int = 1, classes: int = 10, size: int = 8, *, width: int = 32, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if size < 4:
            raise ValueError(f"SmallCNN halves the sides of an image twice; size={size} is below 4.")
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(2 * width * (size // 4) ** 2, 4 * width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits


def parameter_count(model: nn.Module) -> int:
    """How many numbers a model learns; one that several layers share counts once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
