"""The store of a simulated rank: torch keeps notes of its groups in it, and finds those of no other rank."""

from collections.abc import Sequence
from typing import Any

from torch._C._distributed_c10d import HashStore, Store


class RankStore(Store):
    """A store for one rank alone, which says so to whoever waits for another rank's key."""

    def __init__(self) -> None:
        super().__init__()
        self._own = HashStore()

    def set(self, key: str, value: Any) -> None:
        """Keep a value, a string or bytes."""
        self._own.set(key, value)

    def get(self, key: str) -> bytes:
        """The value. Raises RuntimeError if this rank has not set it."""
        self.wait([key])
        return self._own.get(key)

    def add(self, key: str, value: int) -> int:
        """Count on by `value`; returns the sum."""
        return self._own.add(key, value)

    def check(self, keys: list[str]) -> bool:
        """Whether this rank has set all keys."""
        return self._own.check(keys)

    def wait(self, keys: Sequence[str], *_: Any) -> None:
        """Nothing, if this rank has set all keys. Raises RuntimeError otherwise: nobody else can."""
        for key in keys:
            if not self._own.check([key]):
                raise RuntimeError(
                    f"This rank has not set {key.rpartition('/')[2]!r}, and simulated ranks share no store. "
                    f'Send it, for example with dist.broadcast_object_list, or launch on="processes".'
                )

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set the value if it is the expected one; returns what it is then."""
        return self._own.compare_set(key, expected, desired)

    # C++ looks for these two by its own names.

    def deleteKey(self, key: str) -> bool:  # noqa: N802
        """Forget a value; whether there was one."""
        return self._own.delete_key(key)

    def getNumKeys(self) -> int:  # noqa: N802
        """How many keys there are."""
        return self._own.num_keys()
