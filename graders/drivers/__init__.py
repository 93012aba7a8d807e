"""Functions that drive an answer, run beside it, and hold no expected value: one module a unit."""
