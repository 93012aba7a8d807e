"""A clock for tensors without data, which works out only once what a call makes and how much it computes.

A search counts the same operators again and again, in plans that differ in few places. What a call makes of
tensors without data depends on their shapes, strides and types only.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from course_lib.runtime.simulator.device_clock import DeviceClock
from course_lib.runtime.simulator.roofline import ComputeClock, computes_in_half, flops_of, nbytes_of

MOST = 100_000
"""So many calls are remembered. When there are more, it begins anew."""


class Look(NamedTuple):
    """What there is to know of a tensor without data."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "Look":
        """That of this tensor."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def made(self) -> Tensor:
        """A new tensor that looks so."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")


class Call(NamedTuple):
    """What a call computes: floating-point operations, bytes of its tensors, whether in 16 bits a number.
    results: how each looks, or which of the arguments it is. single: whether it is one and no tuple.
    """

    flops: int
    nbytes: int
    half: bool
    results: tuple[Look | int, ...]
    single: bool


_known: dict[object, Call] = {}
"""What was called, on what -> what came of it, on whatever cluster."""


class Stopwatch:
    """What ComputeClock asks of an engine: the clock of one device, whose host begins when it does."""

    communicating = False

    def __init__(self, cluster: Cluster) -> None:
        self._clock = DeviceClock(lambda *stretch, **more: None, cluster.computes)

    @property
    def seconds(self) -> float:
        """When the device has done what it was given."""
        return self._clock.clock

    def compute(self, rank: int, seconds: float) -> None:
        """The rank's clock is ours."""
        if self._clock.device.dispatch_seconds:
            self._clock.queue()
        self._clock.compute(seconds)


class RememberingClock(ComputeClock):  # type: ignore[no-untyped-call]
    """A ComputeClock for what is computed without data, on the device "meta", and sends nothing."""

    def __init__(self, watch: Stopwatch, cluster: Cluster) -> None:
        engine: Any = watch
        super().__init__(engine, 0, cluster)
        self._watch = watch

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view:
            return func(*args, **kwargs)
        key = func, _key(args), _key(kwargs.items())
        call = _known.get(key)
        if call is None:
            result = func(*args, **kwargs)
            call = _call(func, args, kwargs, result)
            if call is None:
                self._watch.compute(0, self.roofline.seconds(func, args, kwargs, result))
                return result
            if len(_known) >= MOST:
                _known.clear()
            _known[key] = call
        else:
            made = tuple(args[each] if isinstance(each, int) else each.made() for each in call.results)
            result = made[0] if call.single else made
        self._watch.compute(0, self.roofline.seconds_of(func, call.flops, call.nbytes, call.half))
        return result


def _key(values: Iterable[Any]) -> tuple[Any, ...]:
    """What tells arguments from others that may give another result."""
    return tuple(
        (Look.of(each), each.device.type)
        if isinstance(each, Tensor)
        else _key(each)
        if isinstance(each, list | tuple)
        else (type(each), each)
        for each in values
    )


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Call | None:
    """What has come of a call, if that is all new tensors or arguments."""
    results = result if isinstance(result, tuple) else (result,)
    looks = [_look(each, args) for each in results]
    known = tuple(each for each in looks if each is not None)
    if len(known) < len(looks):
        return None
    nbytes = nbytes_of((*args, *kwargs.values(), result))
    flops = flops_of(func, args, kwargs, result)
    return Call(flops, nbytes, bool(flops) and computes_in_half(args), known, results is not result)


def _look(result: Any, args: tuple[Any, ...]) -> Look | int | None:
    """How a result looks, or which argument it is; None if it is neither new nor one of them."""
    for place, argument in enumerate(args):
        if result is argument:
            return place
    if not isinstance(result, Tensor) or result.device.type != "meta":
        return None
    look, storage = Look.of(result), result.untyped_storage()
    shared = any(
        isinstance(each, Tensor) and each.untyped_storage()._cdata == storage._cdata for each in args
    )
    return None if shared or storage.nbytes() != look.made().untyped_storage().nbytes() else look
