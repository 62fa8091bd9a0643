"""Passes over batches, each process over its own, and what all of them add up to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from pcn.collectives import Ranks
from pcn.errors import ConfigError, StatisticsError
from pcn.running.example import Example, Forward, device_of
from pcn.running.failures import USED_UP, saying_which
from pcn.running.gradients import Loss, Reads
from pcn.running.trees import fresh_copy
from pcn.statistics.collect import Collector
from pcn.statistics.over_processes import add_up_, share_test_vectors_
from pcn.statistics.sketch import Sketch

NO_SAMPLE = "the batches hold no samples: the first size of every tensor is 0; give some with samples"


@dataclass(frozen=True)
class Passes:
    """A model, the batches of this process, and the processes that go over theirs at the same time."""

    model: nn.Module
    batches: Iterable[Any]
    forward: Forward | None
    ranks: Ranks

    def collect_(self, collector: Collector, loss: Loss | None = None) -> Example | None:
        """Go over the batches once, forward and, for a loss, backward, and add up what all processes have seen.

        Returns this process's first batch with a sample, or its first where none has one; None without any.
        """
        example = self.ranks.together(lambda: self._alone(collector, loss))
        has_samples = self.ranks.gather(None if example is None else not example.is_empty)
        if not any(has_samples):
            raise StatisticsError(NO_SAMPLE if False in has_samples else f"there was no batch: {USED_UP}")
        add_up_(collector, self.ranks)
        return example

    def refine_(self, collector: Collector, passes: int | None) -> None:
        """Go over the batches again for the sketches, if there are any and all processes can."""
        sketched = [key for key, moments in collector.moments.items() if isinstance(moments, Sketch)]
        again = bool(sketched) and not any(self.ranks.gather(isinstance(self.batches, Iterator)))
        if sketched and passes is not None and passes > 1 and not again:
            raise ConfigError(
                f"passes={passes}, but the batches can be iterated only once; give a list or a data loader"
            )
        for _ in range(1, (passes or 2) if again else 1):
            refined = collector.refining(sketched)
            share_test_vectors_(refined, self.ranks)
            self.collect_(refined)
            collector.moments |= refined.moments

    def _alone(self, collector: Collector, loss: Loss | None) -> Example | None:
        model, device = self.model, device_of(self.model)
        first = None
        for number, batch in enumerate(self.batches):
            # A loss of one's own calls the model itself, with whatever it takes of the batch.
            own = loss is not None
            example = Example.of(batch, self.forward, device) if own else Example.for_model(model, batch, self.forward)
            with saying_which(f"batch {number}", example, or_else=', or measure with mode="eval"'):
                if loss is None:
                    with collector.watching():
                        example.call(model)
                else:
                    self._differentiate(collector, loss, batch, example.samples)
            collector.end_batch()
            if first is None or (first.is_empty and not example.is_empty):
                first = example.with_inputs(tree_map_only(Tensor, torch.Tensor.detach, example.inputs))
                collector.check_finite()  # numbers that are not finite show early
        collector.check_finite()
        return first

    def _differentiate(self, collector: Collector, loss: Loss, batch: Any, samples: int) -> None:
        reads = Reads(self.model, collector.differentiable, samples)
        with collector.watching(), reads.watching():
            value = loss(self.model, fresh_copy(batch))
        # The collector does not watch the backward pass, where a model with checkpoints calls its layers again.
        for name, _, gradient in reads.gradients(value):
            collector.take_gradient(name, gradient)
