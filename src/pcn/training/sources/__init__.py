"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pcn.errors import ConfigError, suggest
from pcn.training.data import Data
from pcn.training.named_models import import_factory
from pcn.training.settings import Settings
from pcn.training.sources import cifar10, digits, folder, mnist

SOURCES: dict[str, Callable[[Settings], Any]] = {
    "digits": digits.load,
    "mnist": mnist.load,
    "cifar10": cifar10.load,
    "folder": folder.load,
}


def load_data(settings: Settings, device: torch.device, dtype: torch.dtype) -> Data:
    """Load a data set by name, or from ``package.module:factory``, onto the device."""
    if ":" in settings.data:
        made = import_factory(settings.data)(**settings.data_options)
    elif settings.data in SOURCES:
        made = SOURCES[settings.data](settings)
    else:
        known = suggest(settings.data, SOURCES) or f"; there are {', '.join(SOURCES)}, and package.module:factory"
        raise ConfigError(f"no data set is called {settings.data!r}{known}")
    needed = ("to", "steps", "epoch", "validation", "test", "calibration")
    if missing := [name for name in needed if not hasattr(made, name)]:
        raise ConfigError(f"{settings.data!r} made a {type(made).__name__}, which has no {missing[0]}: see ImageData")
    data: Data = made.to(device, dtype)
    return data
