"""The page about the code's layout is drawn from the code, and is what the code is now."""

import subprocess
import sys
from pathlib import Path

from docs import architecture

ROOT = Path(__file__).parents[1]


def test_the_page_is_what_is_drawn_today():
    # Invariant: rooms, arrows and flows on the page are those of the code. A process of its own draws them:
    # what else a process has imported changes what it enters.
    command = [sys.executable, "-m", "docs.architecture", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_arrows_point_down_in_the_figure():
    # Invariant: no arrow of the figure goes up or stays on its level, so who reads from the top meets nothing
    # that rests on what was above.
    level = {room: number for number, rooms in enumerate(architecture.LEVELS) for room in rooms}
    pairs = architecture.arrows(architecture.import_graph())
    assert not [(a, b) for a, b in pairs if level[a] >= level[b]]


def test_what_follows_is_left_out():
    # Invariant: an arrow goes if and only if a longer way leads to the same room.
    pairs = [("a", "b"), ("b", "c"), ("a", "c"), ("a", "d")]
    assert architecture.reduced(pairs) == [("a", "b"), ("b", "c"), ("a", "d")]
