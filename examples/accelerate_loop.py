"""An Accelerate loop in which the network becomes small after epoch 3, and whose saved state can be loaded again.

accelerate launch examples/accelerate_loop.py   (needs accelerate and scikit-learn; torchrun works as well)
"""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pcn
from pcn.integrations.accelerate import prepare_switch

EPOCHS = 8


def build_model():
    return nn.Sequential(
        *(nn.Linear(64, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU()),
        *(nn.Linear(512, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU()),
        nn.Linear(512, 10),
    )


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    pixels, digits = (torch.tensor(array) for array in load_digits(return_X_y=True))
    order = torch.randperm(len(pixels))
    train, test = (TensorDataset(pixels[part].float() / 16, digits[part]) for part in (order[:1300], order[1300:]))

    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    loader, calibration = DataLoader(train, batch_size=64, shuffle=True), DataLoader(train, batch_size=256)
    model, optimizer, loader, calibration = accelerator.prepare(model, optimizer, loader, calibration)

    switch = prepare_switch(accelerator, pcn.Switch(model, optimizer, params=0.2, at=3))
    for epoch in range(1, EPOCHS + 1):
        model.train()
        for inputs, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
        schedule.step()
        if switch.after_epoch(epoch, calibration) is not None:
            accelerator.print(switch.plan)
        accelerator.save_state("accelerate_digits")

    # Somewhere else, the same objects built anew take the saved state up: accelerator.load_state("accelerate_digits")

    model.eval()
    with torch.no_grad():
        inputs, labels = test[:]
        accuracy = (model(inputs.to(accelerator.device)).argmax(1).cpu() == labels).float().mean()
    size = sum(parameter.numel() for parameter in model.parameters())
    accelerator.print(f"{size:,} trained parameters, test accuracy {accuracy:.1%}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
