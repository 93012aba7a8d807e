"""The simulated backend of `torch.distributed`: process groups whose calls become operations of an engine.

Everything above them is torch's own: `dist.all_reduce`, DistributedDataParallel, DTensor, device meshes.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist

# Its functions take for granted the group that there is when it is imported: none here, one rank's own there.
import torch.distributed.nn.functional
from torch import Tensor
from torch._C._distributed_c10d import BuiltinCommHookType
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from course_lib.runtime.communication.call import NEW_GROUP, Call
from course_lib.runtime.communication.callsite import caller_line
from course_lib.runtime.communication.ddp_join import waiting_in_join
from course_lib.runtime.communication.intercepted_group import InterceptedGroup, TorchCall
from course_lib.runtime.communication.semantics import check_reducible
from course_lib.runtime.simulator.cuda_streams import simulated_streams
from course_lib.runtime.simulator.engine import RankEngine, current_engine, current_rank
from course_lib.runtime.simulator.meta_collectives import counted_on_meta
from course_lib.runtime.simulator.open_buffers import OpenBuffers, open_buffers
from course_lib.runtime.simulator.replaced import replaced
from course_lib.runtime.simulator.works import SimulatedWork, all_of

BACKEND = "simulated"
DEVICES = ["cpu", "cuda"]
_ROOTED = ("gather", "gather_single", "scatter")


class SimulatedGroup(InterceptedGroup):
    """One rank's end of a process group, whose calls become operations of an engine."""

    def __init__(self, engine: RankEngine, rank: int, name: str, members: Sequence[int]) -> None:
        """rank: this rank's global number. members: global ranks, in the order of the group."""
        self._group_rank = members.index(rank)
        super().__init__(self._group_rank, len(members))
        self._engine = engine
        self._global_rank = rank
        self.call_group = engine.group(name, members)
        self._calls: dict[Call, Call] = {}
        self._buffers = open_buffers.get()

    def __repr__(self) -> str:
        """What torch shows where it refuses a rank."""
        return f"(ranks {', '.join(map(str, self.call_group.members))})"

    # --- What torch asks a group about itself

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """The backend's name."""
        return BACKEND

    def _get_backend(self, device: torch.device) -> Any:
        """For torch, since 2.14, to ask whether messages can be coalesced: not here."""
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        """Those for which the backend is registered, as Gloo is."""
        return [torch.device(kind) for kind in DEVICES]

    supports_splitting = supports_coalescing = False
    """As torch asks what `_get_backend` gives."""

    def size(self) -> int:
        """How many members the group has."""
        return len(self.call_group.members)

    def rank(self) -> int:
        """This rank's position in the group."""
        return self._group_rank

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """The name under which torch has registered the group."""
        return self.call_group.name

    @property
    def pg_name(self) -> str:
        """The same; torch uses both."""
        return self.call_group.name

    # --- Calls

    def carry_out(
        self,
        call: Call,
        peer: int | None,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        torchs: TorchCall,
    ) -> SimulatedWork:
        """Post the call."""
        if not call.is_message:
            _check_parts(call.op, self.size(), inputs, outputs)
            if call.reduction:
                # Before anyone meets: every rank raises, and not the one that came last.
                check_reducible(call.op, call.reduction, inputs[0].dtype)
            # Those of one line in a loop are one object, as messages are.
            call = self._calls.setdefault(call, call)
        operation = call.operation(self._global_rank, peer, tuple(inputs), tuple(outputs))
        self._buffers.begin(operation, self._engine)
        self._engine.post(operation)
        result = list(inputs if call.op == "send" else outputs)
        return SimulatedWork(self._engine, operation, result, self._buffers)


def _check_parts(op: str, size: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Raise ValueError if a list of one tensor a member is not as long as it must be, or not equal."""
    if op in ("all_to_all", "all_to_all_single"):
        _check_count(op, size, inputs)
        _check_count(op, size, outputs)
    elif op in ("all_gather", "reduce_scatter") or (op in _ROOTED and inputs and outputs):
        whole, parts = (inputs, outputs) if "gather" in op else (outputs, inputs)
        _check_count(op, size, parts)
        for position, part in enumerate(parts):
            if part.numel() != whole[0].numel():
                raise ValueError(
                    f"{op} got a tensor of {whole[0].numel()} elements, and at position {position} of its "
                    f"list one of {part.numel()}. All must have the same number of elements."
                )


def _check_count(op: str, size: int, parts: Sequence[Tensor]) -> None:
    if len(parts) != size:
        raise ValueError(
            f"{op} in a group of {size} ranks needs {size} parts, one for each rank in the order of the "
            f"group, and got {len(parts)}."
        )


def _make_group(options: Any, backend_options: Any) -> SimulatedGroup:
    """What torch calls to create a group on the rank that it runs on."""
    rank = current_rank.get()
    if rank is None:
        raise RuntimeError(
            f'The backend "{BACKEND}" exists only on simulated ranks: launch(f, ranks=4) starts them.'
        )
    # The default group comes first, and without a list of its members.
    members: Sequence[int] = options.global_ranks_in_group or range(options.group_size)
    if not options.global_ranks_in_group:
        open_buffers.set(OpenBuffers())
    return SimulatedGroup(current_engine.get(), rank, options.group_id, members)


@contextmanager
def as_with_gloo() -> Iterator[None]:
    """Have simulated ranks meet where others do: in every `new_group`, which all must call alike, and which
    may name Gloo, whose part is taken here; in `monitored_barrier`, which torch allows to Gloo alone; and in
    functional collectives of meta tensors. And have futures of several keep what they hang on, which C++
    would drop, and DDP's built-in hook in half precision run in Python: C++ expects of an all-reduce's future
    a list that Python's cannot hold. And give ranks streams of their own devices, for which they can wait
    whether the machine has a GPU or not, as torch's PowerSGD does.
    """
    make, monitor = distributed_c10d._new_group_with_tag, dist.monitored_barrier

    @wraps(make)
    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *arguments: Any, **options: Any
    ) -> Any:
        rank = current_rank.get()
        ranks = None if ranks is None else list(ranks)
        if rank is not None and ranks == []:
            raise ValueError("new_group([]) has no rank: a group needs at least one.")
        if rank is not None and not options.get("use_local_synchronization", False):
            _agree_on_group(rank, ranks)
        if rank is not None and _is_gloo(backend):
            backend = None
        return make(ranks, timeout, backend, *arguments, **options)

    @wraps(monitor)
    def monitored_barrier(group: Any = None, *arguments: Any, **options: Any) -> None:
        group = group or distributed_c10d._get_default_group()
        call = group.monitored_barrier if isinstance(group, SimulatedGroup) else partial(monitor, group)
        call(*arguments, **options)

    def wait_all(futures: Any) -> list[Any]:
        return [each.wait() for each in all_of(futures).wait()]

    with (
        simulated_streams(),
        replaced(DistributedDataParallel, _register_builtin_comm_hook=_builtin_hook),
        replaced(distributed_c10d, _new_group_with_tag=new_group),
        replaced(dist, monitored_barrier=monitored_barrier),
        replaced(torch.futures, collect_all=all_of, wait_all=wait_all),
        counted_on_meta(),
        ExitStack() as others,
    ):
        for owner, name, method in waiting_in_join():
            others.enter_context(replaced(owner, **{name: method}))
        yield


_builtin_in_c = DistributedDataParallel._register_builtin_comm_hook


def _builtin_hook(model: DistributedDataParallel, kind: BuiltinCommHookType) -> None:
    """Register what computes the same in Python on simulated ranks, else what there is in C++."""
    if current_rank.get() is None or kind != BuiltinCommHookType.FP16_COMPRESS:
        return _builtin_in_c(model, kind)  # type: ignore[no-untyped-call,no-any-return]
    # Imported here: few need it.
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    return model.register_comm_hook(model.process_group, fp16_compress_hook)


def _is_gloo(backend: Any) -> bool:
    """Whether a group's backend is Gloo for tensors on the CPU: `gloo`, or `cpu:gloo,cuda:nccl`."""
    return isinstance(backend, str) and not {"gloo", "cpu:gloo"}.isdisjoint(backend.lower().split(","))


def _agree_on_group(rank: int, ranks: Sequence[int] | None) -> None:
    """Wait until every rank makes a group of these ranks."""
    engine = current_engine.get()
    everyone = range(dist.get_world_size())
    members = str(sorted(everyone if ranks is None else ranks))
    call = Call(NEW_GROUP, engine.group(NEW_GROUP, everyone), reduction=members, line=caller_line())
    operation = call.operation(rank)
    engine.post(operation)
    engine.wait(operation)


dist.Backend.register_backend(BACKEND, _make_group, extended_api=True, devices=DEVICES)
