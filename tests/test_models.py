"""The units' transformer: what it may see, where it can be cut, and that it learns."""

import copy

import pytest
import torch
from torch import nn

from course_lib.data import load_text
from course_lib.models import Transformer, TransformerConfig, next_token_loss

SMALL = TransformerConfig(layers=2, width=16, heads=4, vocabulary=32, context=8)


def _tokens(config: TransformerConfig, samples: int = 3) -> torch.Tensor:
    return torch.randint(config.vocabulary, (samples, config.context))


def test_no_token_sees_a_later_one() -> None:
    # Invariant: what is changed at a place changes the logits there and after it, and none before it.
    model = Transformer(SMALL)
    tokens = _tokens(SMALL)
    other = tokens.clone()
    other[:, 5] = (other[:, 5] + 1) % SMALL.vocabulary
    changed = (model(tokens) != model(other)).any(-1).any(0)
    assert changed.tolist() == [False] * 5 + [True] * 3


def test_the_pieces_are_the_model() -> None:
    # Invariant: embedding, blocks and head in a sequence give the model's very logits and gradients.
    model = Transformer(SMALL)
    apart = nn.Sequential(*copy.deepcopy(model).pieces)
    assert len(apart) == SMALL.layers + 2
    tokens = _tokens(SMALL)
    outputs = [each(tokens) for each in (model, apart)]
    assert torch.equal(*outputs)
    for output in outputs:
        next_token_loss(output, tokens).backward()
    gradients = [[parameter.grad for parameter in each.parameters()] for each in (model, apart)]
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


def test_a_tied_head_has_the_embeddings_weight() -> None:
    # Tied: one parameter, also in a copy. Not tied: two, drawn apart.
    assert (tied := Transformer(SMALL)).head.logits.weight is tied.embedding.tokens.weight
    assert (copied := copy.deepcopy(tied)).head.logits.weight is copied.embedding.tokens.weight
    apart = Transformer(TransformerConfig(tied=False))
    assert not torch.equal(apart.head.logits.weight, apart.embedding.tokens.weight)


def test_half_of_the_heads_can_be_computed_alone() -> None:
    # Invariant: half the rows of query, key and value with half the columns of output, twice, are the whole.
    attention = Transformer(SMALL).blocks[0].attention
    nn.init.normal_(attention.query.bias)
    x = torch.randn(2, 8, SMALL.width)
    total = -attention.output.bias
    for rows in torch.arange(SMALL.width).chunk(2):
        half = copy.deepcopy(attention)
        for layer in (half.query, half.key, half.value):
            layer.weight, layer.bias = nn.Parameter(layer.weight[rows]), nn.Parameter(layer.bias[rows])
        half.output.weight = nn.Parameter(half.output.weight[:, rows])
        total = total + half(x)
    torch.testing.assert_close(total, attention(x))


def test_meta_tensors_and_parameters_drawn_later() -> None:
    # A model without data passes shapes through; filled later it is the one that the same random state gives,
    # tied as before.
    with torch.device("meta"):
        model = Transformer(SMALL)
        assert model(_tokens(SMALL)).shape == (3, SMALL.context, SMALL.vocabulary)
    torch.manual_seed(3)
    model.to_empty(device="cpu").reset_parameters()
    torch.manual_seed(3)
    at_once = Transformer(SMALL)
    torch.manual_seed(3)
    at_once.reset_parameters()
    assert model.head.logits.weight is model.embedding.tokens.weight
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), at_once.parameters(), strict=True))


def test_dropout_acts_in_training_alone() -> None:
    model = Transformer(TransformerConfig(dropout=0.5))
    tokens = _tokens(model.config)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_heads_must_share_the_width() -> None:
    with pytest.raises(ValueError, match="3 heads cannot share a width of 16"):
        TransformerConfig(width=16, heads=3)


def test_it_learns_the_text() -> None:
    # At first every byte is as likely as any other, ln 256 nats; after 60 steps it knows which are frequent.
    text = load_text()
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    order = torch.randperm(len(text.train))
    losses = []
    for step in range(60):
        inputs, targets = text.train.batch(order[8 * step : 8 * step + 8])
        loss = next_token_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(torch.tensor(256.0).log().item(), abs=0.1)
    assert losses[-1] < 3.4
