"""Batch norm's running statistics after the switch: those of the parent, or measured anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pcn.collectives import Ranks
from pcn.errors import StatisticsError
from pcn.layers import unwrap
from pcn.running.example import Batches, Example, Forward, checked_batches, opened, repeatable
from pcn.running.failures import USED_UP, saying_which
from pcn.running.untouched import counting_alone, untouched

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

BatchNorm = nn.modules.batchnorm._BatchNorm
NormStatistics = dict[str, dict[str, Tensor]]  # by norm, then by buffer


def recalibrate_(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Forward | None = None,
    *,
    group: ProcessGroup | None = None,
) -> int:
    """Measure the running means and variances of every batch norm anew, each batch with samples counting the same.

    Everything but batch norm runs in eval mode, so that no dropout is in the way. Returns the number of batches (0 for
    a model without running statistics, which no batch goes through); on an error everything is as before. With a
    process ``group`` every rank calls this with its own batches, and all count on every rank.

    >>> model = nn.Sequential(nn.BatchNorm1d(2))
    >>> recalibrate_(model, [torch.tensor([[0.0, 1.0], [2.0, 3.0]])]), model[0].running_mean
    (1, tensor([1., 2.]))
    """
    count, measured = measure_anew(model, batches, forward, group=group)
    write_(model, measured)
    return count


def measure_anew(
    model: nn.Module, batches: Iterable[Any], forward: Forward | None = None, *, group: ProcessGroup | None = None
) -> tuple[int, NormStatistics]:
    """Return the number of batches and what :func:`recalibrate_` would write; the model stays as it is."""
    model = unwrap(model)
    named = {name: m for name, m in model.named_modules() if isinstance(m, BatchNorm) and _tracks(m)}
    if not named:
        return 0, {}
    ranks = Ranks(group)
    count, measured = ranks.together(lambda: _measure(model, list(named.values()), batches, forward))
    count = sum(ranks.gather(count))
    if not count:
        raise StatisticsError(f"there was no batch with a sample to recalibrate batch norm on: {USED_UP}")
    with torch.no_grad():
        for tensors in measured:
            _average_(tensors, ranks)
    # Where no batch came by, a norm keeps what it had.
    seen = {name: tensors for name, tensors in zip(named, measured, strict=True) if tensors["num_batches_tracked"]}
    _check_finite(seen)
    return count, seen


@torch.no_grad()
def write_(model: nn.Module, measured: NormStatistics) -> None:
    """Give batch norms the running statistics that were measured."""
    base = unwrap(model)
    for norm, tensors in measured.items():
        for name, tensor in tensors.items():
            base.get_submodule(norm).get_buffer(name).copy_(tensor)


class Recalibration:
    """The same for several models, in two steps: nothing is written before everything is measured.

    A change of the models can so be put back when measuring fails, and leave no trace when something else does.
    """

    def __init__(self, models: Sequence[nn.Module], batches: Batches, forward: Forward | None, ranks: Ranks) -> None:
        self._models, self._batches, self._forward, self._ranks = models, batches, forward, ranks
        self._found: list[NormStatistics] = []

    def measure(self) -> None:
        """Measure on every rank, or raise on every rank."""
        if len(self._models) > 1:
            self._batches = self._ranks.together(lambda: repeatable(self._batches))
        for model in self._models:
            own = self._ranks.together(lambda: opened(self._batches))
            self._found.append(measure_anew(model, own, self._forward, group=self._ranks.group)[1])

    def write_(self) -> None:
        for model, measured in zip(self._models, self._found, strict=True):
            write_(model, measured)


def _measure(
    model: nn.Module, norms: list[BatchNorm], batches: Iterable[Any], forward: Forward | None
) -> tuple[int, list[dict[str, Tensor]]]:
    count = 0
    with untouched(model), _measuring(norms):
        for batch in checked_batches(batches):
            example = Example.for_model(model, batch, forward)
            if example.is_empty:  # batch norm would count it with a mean of zero
                continue
            with saying_which(f"batch {count}", example):
                example.call(model)
            count += 1
        return count, [{name: b.clone() for name, b in norm.named_buffers(recurse=False)} for norm in norms]


def _average_(measured: dict[str, Tensor], ranks: Ranks) -> None:
    """Average what the ranks have measured, each batch counting the same."""
    if ranks.size == 1:
        return
    own = measured["num_batches_tracked"]
    whole = own.clone()
    ranks.sum_(whole)
    for name in ("running_mean", "running_var"):
        total = measured[name].double() * own
        ranks.sum_(total)
        measured[name].copy_(total / whole)
    own.copy_(whole)


def _check_finite(measured: NormStatistics) -> None:
    for name, tensors in measured.items():
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise StatisticsError(
                f"what the batch norm {name!r} reads holds NaN or infinite values, so that everything stays as it was; "
                "check the model's weights and the batches"
            )


def _tracks(norm: BatchNorm) -> bool:
    return norm.track_running_stats and norm.running_mean is not None and norm.num_batches_tracked is not None


@contextmanager
def _measuring(norms: list[BatchNorm]) -> Iterator[None]:
    """Have batch norms start afresh and take the plain average over batches."""
    momenta = [norm.momentum for norm in norms]
    try:
        for norm in norms:
            norm.train()
            norm.reset_running_stats()
            norm.momentum = None
        with counting_alone(norms):
            yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
