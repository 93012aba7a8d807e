"""The same on several processes: horovodrun -np 2 python horovod_torch.py digits.npz"""

import horovod.torch as hvd
import torch
from dataset import get_dataset
from torch import nn
from torch.nn import functional

BATCH_SIZE, EPOCHS, LEARNING_RATE, WARMUP_EPOCHS = 64, 8, 1.0, 3

hvd.init()  # 1
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())  # 2: one GPU a process
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(hvd.rank())

data = get_dataset(hvd.rank(), hvd.size())
train, validation = ([torch.from_numpy(array).to(device) for array in part] for part in data)
images, labels = train
model = nn.Sequential(
    nn.Flatten(), nn.Linear(images[0].numel(), 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10)
).to(device)

optimizer = torch.optim.Adadelta(model.parameters(), lr=LEARNING_RATE * hvd.size())  # 3
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())  # 4
hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 5: the optimizer is new and has no state yet
steps = min(hvd.allgather_object(-(-len(images) // BATCH_SIZE)))


def train_epoch(epoch):
    """The samples of this process once, in as many steps as all have: else some would wait for ever."""
    model.train()
    batches = torch.randperm(len(images), device=device).split(BATCH_SIZE)[:steps]
    for step, batch in enumerate(batches):
        warm = min(1.0, (epoch + (step + 1) / steps) / WARMUP_EPOCHS)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 + warm * (hvd.size() - 1))
        optimizer.zero_grad()
        functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()


@torch.no_grad()
def evaluate():
    """Loss and accuracy over the validation data of all ranks."""
    model.eval()
    inputs, targets = validation
    outputs = model(inputs)
    loss = functional.cross_entropy(outputs, targets, reduction="sum")
    correct = (outputs.argmax(1) == targets.argmax(1)).sum()
    sums = hvd.allreduce(torch.tensor([loss, correct, len(inputs)]), op=hvd.Sum)
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


best = float("inf")
for epoch in range(EPOCHS):
    train_epoch(epoch)
    loss, accuracy = evaluate()
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1}: val_loss {loss:.4f}, val_accuracy {accuracy:.4f}")
        if loss < best:
            best = loss
            torch.save(model.state_dict(), "horovod_torch.pt")  # 6: on rank 0
