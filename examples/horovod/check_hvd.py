"""Does Horovod work here? horovodrun -np 2 python check_hvd.py"""

import socket
from importlib.util import find_spec

import horovod

if find_spec("torch"):
    import horovod.torch as hvd
    import torch

    framework, tensor = f"PyTorch {torch.__version__}", torch.tensor
else:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    framework, tensor = f"TensorFlow {tf.__version__}", tf.constant

hvd.init()
built = [name for name in ("gloo", "mpi", "nccl") if getattr(hvd, f"{name}_built")()]
if hvd.rank() == 0:
    print(f"Horovod {horovod.__version__} for {framework}, built with {', '.join(built)}")
here = f"local rank {hvd.local_rank()} of {hvd.local_size()} on {socket.gethostname()}"
print(f"rank {hvd.rank()} of {hvd.size()}, {here}")

# 0 + 1 + ... + (n - 1)
total, expected = (
    float(hvd.allreduce(tensor(float(hvd.rank())), op=hvd.Sum)),
    hvd.size() * (hvd.size() - 1) / 2,
)
if total != expected:
    raise SystemExit(f"rank {hvd.rank()}: the sum of all ranks is {total:g} and should be {expected:g}")
if hvd.rank() == 0:
    print(f"all-reduce: the sum of all ranks is {total:g}, as it should be")
