"""The spectrum of an activation: how many directions hold how much of its variance, and which they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from pcn.errors import ConfigError, StatisticsError
from pcn.statistics import eigen, eigenpairs
from pcn.statistics.eigenpairs import Eigenpairs, Pair, Question
from pcn.statistics.moments import Covariance, Moments
from pcn.statistics.sketch import Sketch


class Spectrum:
    """The spectrum of one activation, found as far as it is asked for.

    Directions without variance complete the basis.
    """

    def __init__(self, moments: Moments, layer: str) -> None:
        self.layer, self.groups, self.width = layer, moments.groups, moments.width
        self._moments, self._found = moments, Eigenpairs(moments)
        self._completed: dict[int, Pair] = {}  # what was last given beyond the pairs
        self.total_variance = self._found.total_variance

    def leading(self, count: int) -> Pair:
        """The largest eigenvalues (g, count), descending, and their eigenvectors (g, width, count)."""
        if not 1 <= count <= self.width:
            raise ConfigError(
                f"{count} directions were asked of the input of {self.layer!r}, which has {self.width} channels"
                + (f" in each of {self.groups} groups" if self.groups > 1 else "")
            )
        pairs = self._found.pairs(lambda values, total: count if len(values) >= count else None, at_least=count)
        if count in self._completed:
            return self._completed[count]
        values = [torch.nn.functional.pad(known[:count], (0, max(0, count - len(known)))) for known, _ in pairs]
        vectors = [eigen.completed(known, count) for _, known in pairs]
        found = torch.stack(values), torch.stack(vectors)
        if any(len(known) < count for known, _ in pairs):
            self._completed = {count: found}
        return found

    def largest(self) -> float:
        """The variance along the direction that has most of it, in the group where that is most."""
        known = self._found.values(lambda values, total: 1)
        return max((float(values[0]) for values in known if len(values)), default=0.0)

    def count_above(self, variance: float) -> int:
        """The number of directions with strictly more than this variance, in the group with most of them."""

        def question(values: Tensor, total: Tensor) -> int | None:
            above = int((values > variance).sum())
            return above + 1 if above < len(values) else None

        return self._count(question, lambda answer: answer - 1, self._at_least(1.0, variance))

    def count_explaining(self, share: float) -> int:
        """The fewest directions that hold this share of the variance, in the group that needs most; at least 1."""

        def question(values: Tensor, total: Tensor) -> int | None:
            short = int((values.cumsum(0) < share * (1 - 1e-12) * total).sum())
            return short + 1 if short < len(values) else None

        return max(1, self._count(question, lambda answer: answer, self._at_least(share)))

    def _at_least(self, share: float, others: float = 0.0) -> int:
        """How many directions it takes at least to hold a share of the variance when the others hold so much each.

        By Cauchy and Schwarz, k eigenvalues add up to no more than √k ‖C‖: known before any of them is.
        """
        if not isinstance(self._moments, Covariance) or self.width <= eigenpairs.EIGH_SIZE:
            return 1
        k = torch.arange(self.width + 1).to(self.total_variance)
        most = k.sqrt() * self._norms.unsqueeze(1) + (self.width - k) * others
        return int((most < share * (1 - 1e-9) * self.total_variance.unsqueeze(1)).sum(1).max())

    @cached_property
    def _norms(self) -> Tensor:
        """‖C‖, the root of all squares, of every group."""
        norms: Tensor = torch.linalg.matrix_norm(self._moments.covariance())
        return norms

    def _count(self, question: Question, count: Callable[[int], int], at_least: int = 1) -> int:
        counts = []
        for values, total in zip(self._found.values(question, at_least), self.total_variance, strict=True):
            answer = question(values, total)
            if answer is None and isinstance(self._moments, Sketch):
                raise StatisticsError(
                    f"{self.layer!r}: the {len(values)} directions that were kept, which hold "
                    f"{float(values.sum() / total):.1%} of the variance, are too few for this rank rule; "
                    "give analyze a larger max_rank"
                )
            counts.append(int((values > 0).sum()) if answer is None else count(answer))
        return max(counts)
