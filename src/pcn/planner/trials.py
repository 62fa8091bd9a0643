"""Layers run alone, in some of their forms, with what they read in the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from pcn.config import PCNConfig
from pcn.costs.kept import Kept, Read, key_of
from pcn.costs.timing import step_ns
from pcn.costs.usage import Usage
from pcn.errors import ConfigError
from pcn.layers import canonical_weight, groups_of, in_width, layout_of, out_width
from pcn.nn import PCModule
from pcn.nn.build import empty_like
from pcn.planner.budget import Budget
from pcn.planner.measured import LayerUsage, RankPair
from pcn.planner.optimizer_state import numbers_kept
from pcn.planner.values import WIDEST
from pcn.plans.ranks import trained_outputs


def bytes_of_tensors(module: nn.Module, state: int) -> Usage:
    """What a module's parameters, their gradients and the optimizer's state take."""
    held = {tensor.data_ptr(): tensor.nbytes for tensor in (*module.parameters(), *module.buffers())}
    trained = sum(parameter.nbytes for parameter in module.parameters() if parameter.requires_grad)
    return Usage(0, sum(held.values()), trained, state * trained)


@dataclass(frozen=True)
class _Trial:
    """One form of a layer, run alone on one input."""

    usage: Usage  # activations without the input itself
    keeps_input: bool


class Trials:
    """Runs layers alone in some of their forms; layers of the same sizes once."""

    def __init__(self, config: PCNConfig, step: int, state: int, two_sided: bool, times: bool) -> None:
        self.config, self.step, self.state, self.two_sided, self.times = config, step, state, two_sided, times
        self._known: dict[tuple[Any, ...], dict[RankPair | None, _Trial]] = {}

    @classmethod
    def of(cls, budget: Budget | None, times: bool) -> Trials:
        budget = Budget(params=1.0) if budget is None else budget
        if not isinstance(budget, Budget):
            raise ConfigError(f"budget={budget!r}: give a Budget, such as Budget(step_ms=0.5)")
        return cls(budget.config, budget.step, numbers_kept(budget.optimizer), budget.two_sided, times)

    def layer(self, name: str, layer: nn.Module, kept: Kept) -> LayerUsage:
        """What a layer takes in all of its calls."""
        only = kept.only_for(name)
        whole = bytes_of_tensors(layer, self.state) + Usage(activations_bytes=sum(only.values()))
        tried: dict[RankPair, Usage] = {}
        patterns = self.config.patterns(name, canonical_weight(layer).shape[2:].numel())
        centred, outputs = self.config.centres(name), self._outputs(name, layer)
        calls = zip(kept.reads[name], kept.keeping[name], strict=True)
        for number, (read, keeps) in enumerate(calls):
            for form, trial in self._forms(layer, read, outputs, patterns, centred).items():
                own = Usage(activations_bytes=only.get(read.key, 0)) if trial.keeps_input else Usage()
                if form is None:
                    whole += Usage(time_ns=trial.usage.time_ns)
                else:
                    # Without gradients, or where all is recomputed in the backward pass, no form keeps anything.
                    spent = trial.usage + own if keeps else replace(trial.usage, activations_bytes=0)
                    again = replace(spent, weights_bytes=0, gradients_bytes=0, optimizer_bytes=0)
                    tried[form] = tried[form] + again if number else spent
        return LayerUsage(whole, tried, patterns)

    def _forms(
        self, layer: nn.Module, read: Read, outputs: Sequence[int], patterns: int | None, centred: bool
    ) -> dict[RankPair | None, _Trial]:
        weight = canonical_weight(layer)
        memory = weight.dtype, layout_of(weight), weight.requires_grad
        sizes = (str(layer), replace(read, key=0), *memory, *outputs, patterns, centred)
        if sizes not in self._known:
            like = read.like()
            trials: dict[RankPair | None, _Trial] = {None: self._try(layer, like)}
            ranks = doubling(self.step, in_width(layer) // groups_of(layer))
            for rank, trained in [*product(ranks, (None, *outputs)), *product((None,), outputs)]:
                trials[rank, trained] = self._try(self._part(layer, rank, trained, patterns, centred), like)
            self._known[sizes] = _rising(trials)
        return self._known[sizes]

    def _outputs(self, name: str, layer: nn.Module) -> Sequence[int]:
        """How many outputs are trained behind a basis in what is tried: as a rule says, or what may be chosen from."""
        width, asked = out_width(layer) // groups_of(layer), self.config.rule_for(name)[0].output_rank
        if asked is not None:
            count = trained_outputs(asked, width, self.config.multiple_of)
            return [] if count is None else [count]
        return doubling(self.step, width, times=4) if self.two_sided and width <= WIDEST else []

    def _part(
        self, layer: nn.Module, rank: int | None, outputs: int | None, patterns: int | None, centred: bool
    ) -> PCModule:
        part = empty_like(
            layer,
            rank,
            train_basis=self.config.train_basis,
            offset=self.config.keep_dropped,
            output_rank=outputs,
            kernel_rank=None if rank is None else patterns,
            bias=layer.bias is not None or (centred and not (rank is None and self.config.keep_dropped)),
            centred=centred,
        )
        with torch.no_grad():
            for tensor in (*part.parameters(), *part.buffers()):
                tensor.normal_(std=0.1)  # what lies in new memory may be slow numbers
            part.deal_patterns_evenly_()
        return part

    def _try(self, part: nn.Module, x: Tensor) -> _Trial:
        kept = Kept.beside((*part.parameters(), *part.buffers()))
        with kept.watched():
            part.forward(x)  # not by a call: the layer's hooks are for the model's own steps
        others = sum(size for key, size in kept.sizes.items() if key != key_of(x))
        wanted = [tensor for tensor in (x, *part.parameters()) if tensor.requires_grad]
        time_ns = step_ns(lambda: part.forward(x), wanted, x.device) if self.times else 0
        usage = bytes_of_tensors(part, self.state) + Usage(time_ns=time_ns, activations_bytes=others)
        return _Trial(usage, key_of(x) in kept.sizes)


def doubling(first: int, last: int, times: int = 2) -> list[int]:
    """Numbers from the first to the last, each so many times the one before.

    >>> doubling(8, 100), doubling(8, 5)
    ([8, 16, 32, 64, 100], [5])
    """
    found = [min(first, last)]
    while found[-1] < last:
        found.append(min(times * found[-1], last))
    return found


def _rising(trials: dict[RankPair | None, _Trial]) -> dict[RankPair | None, _Trial]:
    """Have no form take less time than one of lower ranks: what measures so is chance, or nothing to rely on."""

    def below(form: RankPair, other: RankPair) -> bool:
        sides = [*zip(other, form, strict=True)]
        alike = all((low is None) == (high is None) for low, high in sides)
        return alike and all(low is None or high is None or low <= high for low, high in sides)

    forms = [form for form in trials if form is not None]
    found = dict(trials)
    for form in forms:
        time_ns = max(trials[other].usage.time_ns for other in forms if below(form, other))
        found[form] = replace(trials[form], usage=replace(trials[form].usage, time_ns=time_ns))
    return found
