"""A plain PyTorch loop in which the network becomes small after epoch 3: three lines around pcn.Switch.

python examples/plain_pytorch.py   (needs scikit-learn)
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pcn

EPOCHS = 10

torch.manual_seed(0)
pixels, digits = (torch.tensor(array) for array in load_digits(return_X_y=True))
images, order = pixels.float().view(-1, 1, 8, 8) / 16, torch.randperm(len(pixels))
train, test = (TensorDataset(images[part], digits[part]) for part in (order[:1300], order[1300:]))
loader = DataLoader(train, batch_size=64, shuffle=True)
calibration = DataLoader(train, batch_size=256)  # training images without augmentation; no more than 5,000 are needed

model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10)),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, epochs=EPOCHS, steps_per_epoch=len(loader))

switch = pcn.Switch(model, optimizer, params=0.2, at=3)  # 1: a fifth of the parameters, after epoch 3
for epoch in range(1, EPOCHS + 1):
    model.train()
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        schedule.step()

    plan = switch.after_epoch(epoch, calibration)  # 2: the plan when it switched, otherwise None
    if plan is not None:
        print(plan)  # layer by layer, what was kept

    model.eval()
    with torch.no_grad():
        right = sum((model(inputs).argmax(1) == labels).sum().item() for inputs, labels in DataLoader(test, 256))
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"epoch {epoch:2}: {size:7,} trained parameters, test accuracy {right / len(test):.1%}")

pcn.save(
    model, "small_digits"
)  # 3: plan.json and model.safetensors; pcn.load(build_model(), "small_digits") reads them
