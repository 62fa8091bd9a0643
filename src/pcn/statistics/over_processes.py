"""Statistics over several processes: every rank ends with those of all samples."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pcn.collectives import Ranks
from pcn.statistics import forms
from pcn.statistics.collect import Collector
from pcn.statistics.forms import SketchOptions
from pcn.statistics.moments import Moments, Shifted
from pcn.statistics.samples import Samples, fits
from pcn.statistics.sharing import agreed_keys
from pcn.statistics.sketch import Sketch


@dataclass(frozen=True)
class Held:
    """What a rank tells the others about its moments of one activation."""

    groups: int
    width: int
    count: int
    raw: bool  # whether it holds the samples themselves
    dtype: torch.dtype  # of the samples, or of the pilot mean

    @classmethod
    def of(cls, moments: Moments) -> Held:
        if isinstance(moments, Samples):
            return cls(moments.groups, moments.width, moments.count, True, _widest(p.dtype for p in moments.parts))
        assert isinstance(moments, Shifted)
        return cls(moments.groups, moments.width, moments.count, False, moments.pilot.dtype)


def add_up_(collector: Collector, ranks: Ranks) -> None:
    """Let every rank hold the moments of all ranks' samples; a rank may have seen some activations or none."""
    if ranks.size == 1:
        return
    collector.key_of = key_of = agreed_keys(ranks.gather(collector.key_of))
    collector.moments = _joined({key_of[key]: each for key, each in collector.moments.items()}, collector, ranks)
    collector.gradients = _joined(collector.gradients, collector, ranks)


def _joined(mine: dict[str, Moments], collector: Collector, ranks: Ranks) -> dict[str, Moments]:
    """The moments of all ranks, in the order in which the first rank to have them has them."""
    theirs = ranks.gather({key: Held.of(moments) for key, moments in mine.items()})
    return {
        key: _Activation(
            mine.get(key), [held.get(key) for held in theirs], collector.device_of(key), collector.options, ranks
        ).joined()
        for key in dict.fromkeys(key for held in theirs for key in held)
    }


def share_test_vectors_(collector: Collector, ranks: Ranks) -> None:
    """Have all ranks refine with the first one's directions: found on their own, they could differ in the last bit."""
    for moments in collector.moments.values():
        if isinstance(moments, Sketch):
            ranks.broadcast_(moments.test)


@dataclass(frozen=True)
class _Activation:
    """One activation whose samples lie on several ranks."""

    mine: Moments | None
    parts: list[Held | None]  # by rank
    device: torch.device
    options: SketchOptions
    ranks: Ranks

    def joined(self) -> Moments:
        held = [part for part in self.parts if part is not None]
        groups, width, count = held[0].groups, held[0].width, sum(part.count for part in held)
        dtype = _widest(part.dtype for part in held)
        if all(part.raw for part in held) and fits(count, groups, width, dtype):
            return Samples(groups, width, list(self._rows(dtype)))
        return self._summed(count, groups, width, torch.promote_types(dtype, torch.float32))

    def _rows(self, dtype: torch.dtype) -> Iterator[Tensor]:
        for rank, part in enumerate(self.parts):
            if part is not None:
                rows = torch.empty(part.count, part.groups * part.width, dtype=dtype, device=self.device)
                if rank == self.ranks.rank:
                    assert isinstance(self.mine, Samples)
                    torch.cat([own.to(rows) for own in self.mine.parts], out=rows)
                self.ranks.broadcast_(rows, rank)
                yield rows

    def _summed(self, count: int, groups: int, width: int, dtype: torch.dtype) -> Shifted:
        mine = forms.condensed(self.mine, self.options) if isinstance(self.mine, Samples) else self.mine
        assert mine is None or isinstance(mine, Shifted)
        source = next(rank for rank, part in enumerate(self.parts) if part is not None)
        pilot = torch.empty(groups, width, dtype=dtype, device=self.device)
        if mine is not None and self.ranks.rank == source:
            pilot.copy_(mine.pilot)
        self.ranks.broadcast_(pilot, source)
        mine = mine or forms.empty(pilot, self.options)
        sums = mine.brought_to(pilot)
        for total in sums:
            self.ranks.sum_(total)
        return mine.with_sums(pilot, count, sums)


def _widest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    return functools.reduce(torch.promote_types, dtypes)
