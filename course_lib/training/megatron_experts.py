"""Megatron-core's layer of experts on ranks without GPUs.

It takes for granted that there is a GPU: it asks for its number, and copies counts to the host on a stream of
their own. Within `on_cpu` the CPU answers, and streams do nothing, for there is nothing to wait for.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn


class _NoStream:
    """A stream, or an event, of a device whose calls are over when they return."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing is under way."""

    def record_event(self) -> "_NoStream":
        """An event that is over."""
        return self

    def synchronize(self) -> None:
        """Nothing is under way."""


class _NoStates:
    """In place of the states of the GPUs' random numbers: weights are not drawn here, but given."""

    def fork(self, name: str = "") -> Any:
        """No other state."""
        return nullcontext()

    def is_initialized(self) -> bool:
        """There is nothing to set."""
        return True


def _to_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """What is on the host already; as NumPy's if that is asked for."""
    return tensor.numpy() if as_numpy and isinstance(tensor, Tensor) else tensor


@contextmanager
def on_cpu() -> Iterator[None]:
    """Within it Megatron-core's `MoELayer` can be made and called on a process whose tensors are on the CPU.

    Raises ImportError where Megatron-core is not installed.
    """
    from megatron.core.tensor_parallel import layers
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    stream = _NoStream()
    stubs = (
        patch.object(torch.cuda, "current_device", lambda: torch.device("cpu")),
        patch.object(torch.cuda, "Stream", lambda *_, **__: stream),
        patch.object(torch.cuda, "current_stream", lambda *_: stream),
        patch.object(torch.cuda, "stream", lambda _: nullcontext()),
        patch.object(layers, "get_cuda_rng_tracker", _NoStates),
        patch.object(moe_utils, "te_general_gemm", None, create=True),
        patch.object(token_dispatcher, "maybe_move_tensor_to_cpu", _to_host),
    )
    with ExitStack() as stack:
        for stub in stubs:
            stack.enter_context(stub)
        yield


def megatron_layer(gate: Tensor, experts: Sequence[nn.Module], k: int) -> nn.Module:
    """Megatron-core's layer of experts, on all ranks, with these weights. Within `on_cpu`, once on a process.

    gate: [E, D]. experts: all E, MLPs whose `up` and `down` are linear layers, with GELU between them; E is
    a multiple of the ranks. Its `router` is the gate, its `experts.local_experts` are this rank's experts. It
    is called with [tokens, samples, D], and returns the like, and None.
    """
    from megatron.core import parallel_state
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.moe.moe_layer import MoELayer

    (count, width), ranks, up = gate.shape, dist.get_world_size(), experts[0].up
    assert isinstance(up, nn.Linear)
    parallel_state.initialize_model_parallel(expert_model_parallel_size=ranks)
    config = TransformerConfig(
        num_layers=1,
        num_attention_heads=1,
        hidden_size=width,
        moe_ffn_hidden_size=up.out_features,
        num_moe_experts=count,
        expert_model_parallel_size=ranks,
        moe_router_topk=k,
        moe_router_load_balancing_type="none",
        moe_token_dispatcher_type="alltoall",
        bias_activation_fusion=False,
        gradient_accumulation_fusion=False,
        use_cpu_initialization=True,
    )
    spec = get_moe_module_spec(use_te=False, num_experts=count, moe_grouped_gemm=False)
    layer: Any = MoELayer(config, spec.submodules)
    own = count // ranks
    with torch.no_grad():
        layer.router.weight.copy_(gate)
        layer.router.bias.zero_()
        mine = experts[own * dist.get_rank() :][:own]
        for theirs, expert in zip(layer.experts.local_experts, mine, strict=True):
            for to, parameter in zip(theirs.parameters(), expert.parameters(), strict=True):
                to.copy_(parameter)
    whole: nn.Module = layer
    return whole
