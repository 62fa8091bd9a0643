"""Low rank by the singular value decomposition of weights in the middle of training: Pufferfish's and Cuttlefish's.

Both say a rank for every layer but the first and the last; all are multiplied by the same factor, so that the network
trains as many parameters as the others of its size. The optimizer starts afresh, as theirs does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pcn.costs.count import count
from pcn.training import Trainer
from pcn.training.optimizers import make_optimizer
from pcn.training.requests import build_model
from peers.factors import Layer, factorise_, inner_layers, singular_values, use_frobenius_decay_
from peers.switches import Batches, PeerSwitch

HALVINGS = 40  # of the interval that holds the factor


class SVDSwitch(PeerSwitch):
    """Factorises the weights after an epoch; subclasses say the rank that their paper would take."""

    def layers(self, model: nn.Module) -> list[tuple[str, Layer]]:
        """Those that are factorised."""
        return inner_layers(model)

    def wishes(self) -> dict[str, float]:
        raise NotImplementedError

    def cut_(self, batches: Batches) -> dict[str, Any]:
        ranks = ranks_for(self.model, dict(self.layers(self.model)), self.wishes(), self.target)
        self.rebuild_({"ranks": ranks})
        return {"ranks": ranks}

    def rebuild_(self, what: dict[str, Any]) -> None:
        factorise_(self.model, what["ranks"])
        settings, optimizer = self.trainer.settings, self.trainer.optimizer
        fresh = make_optimizer(self.model, settings, graphed=self.trainer.graphed)
        optimizer.state.clear()
        optimizer.param_groups[:] = fresh.param_groups
        use_frobenius_decay_(optimizer, self.model, settings.weight_decay)


class QuarterRank(SVDSwitch):
    """Pufferfish: a quarter of the full rank in every layer."""

    def wishes(self) -> dict[str, float]:
        return {name: 0.25 * full_rank(layer) for name, layer in self.layers(self.model)}


def quarter_rank(trainer: Trainer) -> QuarterRank:
    """Pufferfish's, for the number of parameters that the settings have."""
    target = trainer.settings.params
    assert isinstance(target, int)
    return QuarterRank(trainer, target)


class StableRank(SVDSwitch):
    """Cuttlefish: the stable rank, times what makes it the full rank at initialisation."""

    def wishes(self) -> dict[str, float]:
        initial = dict(self.layers(self._initial()))
        return {
            name: full_rank(layer) * stable_rank(layer) / stable_rank(initial[name])
            for name, layer in self.layers(self.model)
        }

    def _initial(self) -> nn.Module:
        """The network as this run's seed started it."""
        with torch.random.fork_rng():
            torch.manual_seed(self.trainer.settings.seed)
            return build_model(self.trainer.settings)


def full_rank(layer: nn.Module) -> int:
    return min(layer.weight.flatten(1).shape)


def stable_rank(layer: nn.Module) -> float:
    """The sum of the squared singular values over the largest one squared."""
    squares = singular_values(layer).square()
    return float(squares.sum() / squares[0])


def ranks_for(
    model: nn.Module, layers: Mapping[str, nn.Module], wishes: dict[str, float], target: int
) -> dict[str, int]:
    """The wishes times the largest factor that stays within the target; a layer that would not shrink stays whole."""
    whole = count(model).trainable

    def ranks(factor: float) -> dict[str, int]:
        wanted = {name: max(1, round(factor * wish)) for name, wish in wishes.items()}
        return {name: rank for name, rank in wanted.items() if saved(layers[name], rank) > 0}

    def room(factor: float) -> int:
        return target - whole + sum(saved(layers[name], rank) for name, rank in ranks(factor).items())

    low, high = 0.0, max(full_rank(layers[name]) / wish for name, wish in wishes.items())
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if room(middle) >= 0 else (low, middle)
    return _filled(ranks(low), layers, wishes, room(low))


def _filled(
    ranks: dict[str, int], layers: Mapping[str, nn.Module], wishes: Mapping[str, float], room: int
) -> dict[str, int]:
    """Hand what rounding has left over to the layers that are furthest from their wish, while one rank more fits."""
    cost = {name: sum(layers[name].weight.flatten(1).shape) for name in ranks}
    while fitting := [n for n, rank in ranks.items() if cost[n] <= room and saved(layers[n], rank + 1) > 0]:
        name = min(fitting, key=lambda name: ranks[name] / wishes[name])
        ranks, room = {**ranks, name: ranks[name] + 1}, room - cost[name]
    return ranks


def saved(layer: nn.Module, rank: int) -> int:
    """The parameters that two factors of this rank have fewer than the layer."""
    outputs, inputs = layer.weight.flatten(1).shape
    return outputs * inputs - rank * (outputs + inputs)
