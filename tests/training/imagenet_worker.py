"""Under torchrun: the ImageNet recipes at tiny size, trained to the end, and stopped in the middle and taken up again.

torchrun --nproc-per-node 2 imagenet_worker.py FOLDER OUT RECIPE...
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from pcn.nn import PCModule
from pcn.training import RunFolder, Settings, Trainer, World, load_data, world
from pcn.training.settings import read_toml
from pcn.training.world import leave

DIES_AT = 11  # of 24 steps, in the middle of the second epoch
SMALL = {
    "vgg19": {"model_options": {"width": 8, "classes": 3, "dense": 32, "size": 32}},
    "resnet50": {"model_options": {"width": 8, "classes": 3}},
    "wide_resnet50": {"model_options": {"width": 8, "classes": 3}},
}
LAYERS = {"vgg19": {"fc1": {"rank": 6}, "fc2": {"rank": 8}}, "wide_resnet50": {"stage4.*": {"rank": 8}}}


class KilledError(Exception):
    pass


def shrunk(recipe: Path, data: Path) -> Settings:
    """A recipe with another length, and sizes that a CPU trains in seconds; everything else is as it stands there."""
    settings = Settings.from_mapping(read_toml(recipe))
    parent = recipe.stem.removesuffix("-pcn")
    switched = {"pcn": None, "layers": LAYERS.get(parent), "switch_at": "1"}
    return replace(
        settings,
        data_dir=str(data),
        data_options={"size": 32, "workers": 2, "validation": 4},
        epochs=3,
        drops=(1, 2),
        batch=4,
        learning_rate=settings.learning_rate / 10,  # of batches so small
        calibration_samples=16,
        checkpoint_every=0.3,
        **SMALL[parent],
        **(switched if settings.pcn else {}),
    )


def train(settings: Settings, out: Path, here: World, dies_at: int | None = None) -> nn.Module:
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(out, settings)) if here.first else None
        trainer = Trainer(settings, load_data(settings, here.device, torch.float32), folder, world=here)

        def stepped() -> None:
            if trainer.progress.step == dies_at:
                raise KilledError

        trainer.stepped = stepped
        result = trainer.run()
        assert result is not None
        assert result["epoch"] == 3
        return trainer.model


def check(recipe: Path, data: Path, out: Path, here: World) -> None:
    settings = shrunk(recipe, data)
    whole = train(settings, out / "whole", here)
    assert any(isinstance(module, PCModule) for module in whole.modules()) == recipe.stem.endswith("-pcn")
    try:
        train(settings, out / "again", here, DIES_AT)
    except KilledError:
        pass
    else:
        raise AssertionError("it was not stopped")
    again = train(settings, out / "again", here).state_dict()
    for name, value in whole.state_dict().items():
        assert torch.equal(again[name], value), f"{name} differs after it was taken up again"
    sys.stdout.write(f"passed {recipe.stem} on rank {here.rank}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    data, out, *recipes = map(Path, sys.argv[1:])
    with world("cpu") as here:
        for recipe in recipes:
            check(recipe, data, out / recipe.stem, here)
    leave(0)
