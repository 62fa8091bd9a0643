"""Runs with Lightning's trainer, in this process or in one of several."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader

from integrations.training import (
    EPOCHS,
    SMALL,
    SWITCH,
    batches,
    everything,
    leave_together,
    network,
    optimizer_of,
    two_optimizers_of,
)
from pcn.integrations.lightning import SwitchCallback
from pcn.nn import PCModule


class Module(L.LightningModule):
    def __init__(self, smoothing: float = 0.0, batch: int = 24) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = network()
        self.rates: list[float] = []

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        return nn.functional.cross_entropy(self(batch[0]), batch[1], label_smoothing=self.hparams.smoothing)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean(), sync_dist=True)

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        optimizer = optimizer_of(self)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def train_dataloader(self) -> DataLoader[Any]:
        return batches(self.hparams.batch)

    val_dataloader = test_dataloader = train_dataloader


class TwoOptimizers(Module):
    """Matrices and vectors are trained by two optimizers, which takes manual optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], index: int) -> None:
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(nn.functional.cross_entropy(self(batch[0]), batch[1]))
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return two_optimizers_of(self)


def make_trainer(*callbacks: L.Callback, **options: Any) -> L.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    keeps = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    recipe = {"max_epochs": EPOCHS, "accelerator": "cpu", "enable_checkpointing": keeps}
    return L.Trainer(callbacks=list(callbacks), **quiet, **recipe | options)


def switching(**options: Any) -> SwitchCallback:
    return SwitchCallback(batches, **{"config": SMALL, "at": SWITCH} | options)


def keep_all(folder: Path, **options: Any) -> ModelCheckpoint:
    return ModelCheckpoint(folder, "{epoch}-{step}", save_top_k=-1, enable_version_counter=False, **options)


def ended(trainer: L.Trainer, module: Module) -> str:
    assert isinstance(module.net.fc2, PCModule)
    return everything(module, *trainer.optimizers)


def check_every_checkpoint_resumes(
    folder: Path, when: dict[str, Any], at: int = SWITCH, make: type[Module] = Module, **options: Any
) -> str:
    """Train, then start again from each checkpoint but the last: all end with the same bits, which are returned."""

    def run(path: Path | None) -> str:
        module = make()
        trainer = make_trainer(switching(at=at), keep_all(folder, **when), **options)
        trainer.fit(module, ckpt_path=path)
        return ended(trainer, module)

    whole = run(None)
    *paths, _ = sorted(folder.iterdir())
    assert paths
    assert [path.name for path in paths if run(path) != whole] == []
    return whole


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "batch norm.s running statistics lag")  # after so few steps they do
    warnings.filterwarnings("ignore", ".*LeafSpec|.*many workers|.*is not empty")
    leave_together(check_every_checkpoint_resumes(Path(sys.argv[1]), {}, strategy="ddp", devices=2))
