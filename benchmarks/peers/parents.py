"""The two networks that are made small: recipe, sizes to compare at, the paper's own PCN of each size, the grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import cifar10_conv4
import cifar10_resnets
from pcn.training import Settings

IMAGES = (3, 32, 32)  # what both networks read


class Point(NamedTuple):
    """A point of the grid that every method gets."""

    learning_rate: float
    weight_decay: float


@dataclass(frozen=True)
class Parent:
    """A network with its recipe; ``paper`` has the settings of the paper's PCN for every size that is compared.

    ``planner`` says how its ``pcn-planner`` spends a budget where that is not the library's default. Where runs are so
    short that making them ready takes longer than it saves, steps are not ``compiled`` and one process does several.
    """

    recipe: Callable[[int, int, Path], Settings]  # (seed, epochs, folder of the data)
    switch: Callable[[int], int]  # the epoch of the switch in a run of so many epochs
    paper: Mapping[int, Mapping[str, Any]]  # trainable parameters -> settings
    usual: Point  # the recipe's own
    grid: tuple[Point, ...]
    planner: Mapping[str, Any] = field(default_factory=dict)
    grid_epochs: int = 20
    compiled: bool = True
    now: str = "pcn-planner"  # the method that is what a budget does by itself now

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.paper)


def _resnet(seed: int, epochs: int, data: Path) -> Settings:
    return cifar10_resnets.settings("wide_resnet20", seed, epochs, data)


def _resnet_switch(epochs: int) -> int:
    return max(1, round(cifar10_resnets.SWITCH * epochs / cifar10_resnets.EPOCHS))


def _conv4(seed: int, epochs: int, data: Path) -> Settings:
    return cifar10_conv4.settings("conv4", seed, epochs, data, carry_state=True)


def _around(rates: tuple[float, ...], decays: tuple[float, ...]) -> tuple[Point, ...]:
    return tuple(Point(rate, decay) for rate in rates for decay in decays)


PARENTS: dict[str, Parent] = {
    "wide_resnet20": Parent(
        recipe=_resnet,
        switch=_resnet_switch,
        paper={1_094_154: {"pcn": "wide_resnet20-pcn1"}, 473_802: {"pcn": "wide_resnet20-pcn2"}},
        usual=Point(0.1, 1e-4),
        grid=_around((0.05, 0.1, 0.2), (1e-4, 5e-4)),
    ),
    "conv4": Parent(
        recipe=_conv4,
        switch=lambda epochs: min(cifar10_conv4.SWITCH, epochs - 1),
        paper={101_810: {"pcn": "conv4-pcn"}},
        usual=Point(1e-3, 0.0),
        grid=_around((5e-4, 1e-3, 2e-3), (0.0, 1e-4)),
        planner={"worth": "response", "patterns": True, "drop_channels": True, "sized_for": "sgd"},
        compiled=False,  # twenty epochs so short that compiling costs more than it brings
        now="pcn-planner-sized",
    ),
}
