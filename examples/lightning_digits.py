"""Lightning with a callback that makes the network small after epoch 3; the trainer's checkpoints know about it.

python examples/lightning_digits.py   (needs lightning and scikit-learn; resumes where an earlier run was stopped)
"""

import os

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pcn.integrations.lightning import SwitchCallback, load_from_checkpoint

EPOCHS = 8


class Digits(L.LightningModule):
    """Nothing in here knows about the switch."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Linear(64, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU()),
            *(nn.Linear(512, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU()),
            nn.Linear(512, 10),
        )

    def forward(self, pixels):
        return self.net(pixels)

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean(), prog_bar=True, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)]


def main():
    L.seed_everything(0, verbose=False)
    pixels, digits = (torch.tensor(array) for array in load_digits(return_X_y=True))
    order = torch.randperm(len(pixels))
    train, test = (TensorDataset(pixels[part].float() / 16, digits[part]) for part in (order[:1300], order[1300:]))

    calibration = DataLoader(train, batch_size=256)  # training samples without augmentation
    switch = SwitchCallback(calibration, params=0.2, at=3)
    checkpoints = ModelCheckpoint("lightning_digits", save_last=True)
    processes = int(os.environ.get("WORLD_SIZE", 1))  # more than one under torchrun
    trainer = L.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        callbacks=[switch, checkpoints],
        logger=False,
    )
    last = "lightning_digits/last.ckpt"
    trainer.fit(
        Digits(),
        DataLoader(train, batch_size=64, shuffle=True),
        DataLoader(test, batch_size=256),
        ckpt_path=last if os.path.exists(last) else None,
    )

    if trainer.is_global_zero:
        module = load_from_checkpoint(Digits, last).eval()  # Digits.load_from_checkpoint for checkpoints of any epoch
        with torch.no_grad():
            accuracy = (module(test[:][0]).argmax(1) == test[:][1]).float().mean()
        size = sum(parameter.numel() for parameter in module.parameters())
        print(switch.plan)
        print(f"{size:,} trained parameters, test accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
