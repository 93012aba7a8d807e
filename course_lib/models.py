"""Models of the units, small enough to train on two cores.

None has a batch norm: its statistics depend on how a batch is cut, and the units compare different cuts.

Shapes: B samples a batch, C channels, S pixels a side; T tokens a sample, D width of the model, H heads,
K width of a head (D / H), F width inside the MLP, V tokens in the vocabulary. `x_BTD` is a tensor [B, T, D].
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


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


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """How large a Transformer is. The defaults train in seconds on text of `course_lib.data.load_text`.

    layers: blocks. width: D, a multiple of heads (H). vocabulary: V. context: the largest T.
    mlp_width: F, 4 D unless it is given. dropout: probability with which a value is set to zero in training.
    tied: the head has no weight of its own, it uses the embedding's.
    """

    layers: int = 2
    width: int = 64
    heads: int = 4
    vocabulary: int = 256
    context: int = 64
    mlp_width: int | None = None
    dropout: float = 0.0
    tied: bool = True

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(
                f"{self.heads} heads cannot share a width of {self.width}: it must be a multiple."
            )

    @property
    def inner(self) -> int:
        """F."""
        return 4 * self.width if self.mlp_width is None else self.mlp_width


def _rows(count: int, width: int) -> nn.Embedding:
    """As nn.Embedding makes them. On "meta" nothing is drawn: torch would import its compiler for that."""
    rows: nn.Embedding = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
        torch.empty(count, width), freeze=False
    )
    if not rows.weight.is_meta:
        rows.reset_parameters()
    return rows


class Embedding(nn.Module):
    """Tokens [B, T], int64, to x_BTD: a learned row for each token and one for each position."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.tokens = _rows(config.vocabulary, config.width)
        self.positions = _rows(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD: Tensor = self.dropout(self.tokens(tokens_BT) + self.positions(positions_T))
        return x_BTD


class Attention(nn.Module):
    """Causal self-attention, x_BTD to [B, T, D]: each token looks at itself and at those before it.

    Query, key and value are layers of their own, and how many heads there are is seen from how wide their
    outputs are: a layer that computes some of the heads alone can take the place of each.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.output = nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        query_BHTK, key_BHTK, value_BHTK = (
            layer(x_BTD).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores_BHTT = query_BHTK @ key_BHTK.transpose(-2, -1) / math.sqrt(self.head_width)
        later_TT = torch.ones(scores_BHTT.shape[-2:], dtype=torch.bool, device=x_BTD.device).triu(1)
        weights_BHTT = self.dropout(scores_BHTT.masked_fill(later_TT, -math.inf).softmax(-1))
        mixed_BTD = (weights_BHTT @ value_BHTK).transpose(1, 2).flatten(2)
        y_BTD: Tensor = self.output(mixed_BTD)
        return y_BTD


class MLP(nn.Module):
    """Two linear layers with GELU between them, each token by itself: x_BTD to [B, T, F] to [B, T, D]."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.inner)
        self.down = nn.Linear(config.inner, config.width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD: Tensor = self.down(functional.gelu(self.up(x_BTD)))
        return y_BTD


class Block(nn.Module):
    """Attention, then MLP, x_BTD to [B, T, D]; each behind a norm, and added to what came in (pre-norm)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD)))
        y_BTD: Tensor = x_BTD + self.dropout(self.mlp(self.mlp_norm(x_BTD)))
        return y_BTD


class Head(nn.Module):
    """x_BTD to logits_BTV: a norm, then a product with one row for each token of the vocabulary."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.logits = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        logits_BTV: Tensor = self.logits(self.norm(x_BTD))
        return logits_BTV


class Transformer(nn.Module):
    """A decoder like GPT-2 (A. Radford et al., 2019): tokens [B, T], int64, to logits_BTV for the next ones.

    Made under `with torch.device("meta")` it has shapes and no data: `to_empty`, then `reset_parameters`.
    """

    def __init__(self, config: TransformerConfig | None = None) -> None:
        super().__init__()
        self.config = config or TransformerConfig()
        self.embedding = Embedding(self.config)
        self.blocks = nn.ModuleList(Block(self.config) for _ in range(self.config.layers))
        self.head = Head(self.config)
        self.reset_parameters()

    @property
    def pieces(self) -> list[nn.Module]:
        """Embedding, blocks, head: one applied to what the one before returns, they are the model.

        Of a tied model the first and the last share one parameter: where they are copied to different ranks,
        its gradient is the sum of both copies'.
        """
        return [self.embedding, *self.blocks, self.head]

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x = tokens_BT
        for piece in self.pieces:
            x = piece(x)
        return x

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all parameters anew, from torch's random state alone; and tie the head, if it is to be tied.

        As GPT-2 does: normal with deviation 0.02, which is divided by sqrt(2 L) in the layers whose outputs
        are added to a block's inputs; biases 0, norms 1.
        """
        if self.config.tied:
            self.head.logits.weight = self.embedding.tokens.weight
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                nn.init.normal_(layer.weight, std=0.02)
            if isinstance(layer, nn.Linear) and layer.bias is not None:
                nn.init.zeros_(layer.bias)
            if isinstance(layer, nn.LayerNorm):
                layer.reset_parameters()
        for name, parameter in self.named_parameters():
            if name.endswith(("attention.output.weight", "mlp.down.weight")):
                parameter.div_(math.sqrt(2 * self.config.layers))


def next_token_loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """The mean cross-entropy of all tokens of a batch, in nats; a scalar. Targets: int64, from 0 to V - 1."""
    return functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def parameter_count(model: nn.Module) -> int:
    """How many numbers a model learns; one that several layers share counts once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
