"""`horovodrun`, but that it does not import each framework, in seconds, to ask whether Gloo is built in.

It is, where `course beside` has installed Horovod. Run as `python -P horovodrun.py ARGUMENTS`.
"""

from horovod.runner import launch

if __name__ == "__main__":
    launch.gloo_built = lambda verbose=False: True
    launch.run_commandline()
