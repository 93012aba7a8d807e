"""A classifier in one process: python single_torch.py digits.npz"""

import torch
from dataset import get_dataset
from torch import nn
from torch.nn import functional

BATCH_SIZE, EPOCHS, LEARNING_RATE = 64, 8, 1.0

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)


train, validation = ([torch.from_numpy(array).to(device) for array in part] for part in get_dataset())
images, labels = train
model = nn.Sequential(
    nn.Flatten(), nn.Linear(images[0].numel(), 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10)
).to(device)

optimizer = torch.optim.Adadelta(model.parameters(), lr=LEARNING_RATE)


def train_epoch(epoch):
    """Every sample of this process once."""
    model.train()

    for batch in torch.randperm(len(images), device=device).split(BATCH_SIZE):
        optimizer.zero_grad()
        functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()


@torch.no_grad()
def evaluate():
    """Loss and accuracy over the validation data."""
    model.eval()
    inputs, targets = validation
    outputs = model(inputs)
    loss = functional.cross_entropy(outputs, targets)
    accuracy = (outputs.argmax(1) == targets.argmax(1)).float().mean()
    return loss.item(), accuracy.item()


best = float("inf")
for epoch in range(EPOCHS):
    train_epoch(epoch)
    loss, accuracy = evaluate()
    print(f"epoch {epoch + 1}: val_loss {loss:.4f}, val_accuracy {accuracy:.4f}")
    if loss < best:
        best = loss
        torch.save(model.state_dict(), "single_torch.pt")
