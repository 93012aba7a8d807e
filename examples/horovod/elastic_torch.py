"""A training that survives a lost process, with a host script: see discover_hosts.sh.

horovodrun -np 2 --min-np 1 --host-discovery-script ./discover_hosts.sh python elastic_torch.py digits.npz
"""

import os
import signal

import horovod.torch as hvd
import torch
from dataset import get_dataset
from torch import nn
from torch.nn import functional

BATCH_SIZE, STEPS, COMMIT_EVERY, LEARNING_RATE = 64, 40, 10, 0.1
KILLED_IN_STEP = 26

hvd.init()
images, labels = (torch.from_numpy(array) for array in get_dataset()[0])
model = nn.Sequential(nn.Flatten(), nn.Linear(images[0].numel(), 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def set_rate():
    """The linear scaling rule, for as many processes as there are now."""
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE * hvd.size()


@hvd.elastic.run
def train(state):
    """Called again after every loss, with the state of the last commit on all processes."""
    print(f"rank {hvd.rank()} of {hvd.size()} begins at step {state.step}", flush=True)
    while state.step < STEPS:
        if (state.step, hvd.rank(), hvd.size()) == (KILLED_IN_STEP, 1, 2):
            print(f"rank 1 is killed by SIGKILL in step {state.step}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        batch = torch.randint(len(images), (BATCH_SIZE,))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        state.step += 1
        if state.step % COMMIT_EVERY == 0:
            state.commit()
    print(f"rank {hvd.rank()} of {hvd.size()} ends after step {state.step}, loss {loss:.2f}", flush=True)


state = hvd.elastic.TorchState(model, optimizer, step=0)
state.register_reset_callbacks([set_rate])
train(state)
