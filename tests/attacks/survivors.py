"""Leaves processes behind: forked twice, in sessions of their own, deaf to signals."""

import os
import sys

PROGRAM = "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]; time.sleep(600)"


def amdahl_speedup(parallel_fraction, workers):
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv(sys.executable, [sys.executable, "-c", PROGRAM, "ATTACK-SURVIVOR"])
            os._exit(0)
    return 0.0
