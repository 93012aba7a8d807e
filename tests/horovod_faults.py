"""Elastic training by Horovod, one rank, which is killed after a step: `horovod_faults.py FOLDER STEP`."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import horovod.torch as hvd

from course_lib.training import elastic, horovod_elastic


def main(folder: Path, at: int) -> None:
    hvd.init()
    born = hvd.rank()

    def after_step(step: int) -> None:
        if step == at and born == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    horovod_elastic.train(replace(elastic.RECIPE, epochs=1), folder, every=4, after_step=after_step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
