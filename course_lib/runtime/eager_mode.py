"""Watching a rank's tensor operations without torch's compiler."""

from torch.utils._python_dispatch import TorchDispatchMode


class EagerDispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode inside of which nothing is compiled: that keeps torch from importing its compiler.

    270 modules, for the sake of a decorator, in every process that enters such a mode.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
