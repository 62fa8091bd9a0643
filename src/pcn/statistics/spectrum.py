"""The eigenvalues and eigenvectors of an activation's covariance, found as far as they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pcn.errors import ConfigError, StatisticsError
from pcn.statistics import eigen
from pcn.statistics.leading import Leading
from pcn.statistics.moments import Moments
from pcn.statistics.samples import Samples
from pcn.statistics.sketch import Sketch

EIGH_SIZE = 1536  # up to here all eigenpairs cost little

Pair = tuple[Tensor, Tensor]  # eigenvalues (k,) in descending order, eigenvectors (w, k)
Question = Callable[[Tensor, Tensor], int | None]  # known eigenvalues, total variance -> how many of them answer it


class Spectrum:
    """The spectrum of one activation, lazy: each question goes to the cheapest solver, and answers are kept.

    Small problems get a full ``eigh``. Large ones get a Krylov space that grows until the leading eigenpairs answer the
    question, and all eigenpairs only where that would take a quarter of them. Where the samples were kept, all
    eigenpairs come from the smaller side. Eigenvalues that rounding drowns are 0, and directions without variance
    complete the basis.
    """

    def __init__(self, moments: Moments, layer: str) -> None:
        self.layer, self.groups, self.width = layer, moments.groups, moments.width
        self._moments = moments
        self._pairs: list[Pair] | None = None  # one for each group
        self._is_whole = False  # whether eigenvalues that are not in the pairs are 0
        self._solvers: list[Leading] = []
        self.total_variance = moments.variances().sum(1)

    def leading(self, count: int) -> Pair:
        """The largest eigenvalues (g, count), descending, and their eigenvectors (g, width, count)."""
        if not 1 <= count <= self.width:
            raise ConfigError(
                f"{count} directions were asked of the input of {self.layer!r}, which has {self.width} channels"
                + (f" in each of {self.groups} groups" if self.groups > 1 else "")
            )
        pairs = self._ask(lambda values, total: count if len(values) >= count else None, at_least=count)
        values = [torch.nn.functional.pad(known[:count], (0, max(0, count - len(known)))) for known, _ in pairs]
        vectors = [eigen.completed(known, count) for _, known in pairs]
        return torch.stack(values), torch.stack(vectors)

    def count_above(self, variance: float) -> int:
        """The number of directions with strictly more than this variance, in the group with most of them."""

        def question(values: Tensor, total: Tensor) -> int | None:
            above = int((values > variance).sum())
            return above + 1 if above < len(values) else None

        return self._count(question, lambda answer: answer - 1)

    def count_explaining(self, share: float) -> int:
        """The fewest directions that hold this share of the variance, in the group that needs most; at least 1."""

        def question(values: Tensor, total: Tensor) -> int | None:
            short = int((values.cumsum(0) < share * (1 - 1e-12) * total).sum())
            return short + 1 if short < len(values) else None

        return max(1, self._count(question, lambda answer: answer))

    def _count(self, question: Question, count: Callable[[int], int]) -> int:
        counts = []
        for (values, _), total in zip(self._ask(question), self.total_variance, strict=True):
            answer = question(values, total)
            if answer is None and isinstance(self._moments, Sketch):
                raise StatisticsError(
                    f"{self.layer!r}: the {len(values)} directions that were kept, which hold "
                    f"{float(values.sum() / total):.1%} of the variance, are too few for this rank rule; "
                    "give analyze a larger max_rank"
                )
            counts.append(int((values > 0).sum()) if answer is None else count(answer))
        return max(counts)

    def _ask(self, question: Question, at_least: int = 1) -> list[Pair]:
        """Return pairs that answer the question in every group, or all there are."""
        known = self._pairs is not None and all(
            question(values, total) is not None
            for (values, _), total in zip(self._pairs, self.total_variance, strict=True)
        )
        if self._pairs is None or not (known or self._is_whole or isinstance(self._moments, Sketch)):
            self._pairs = [(self._denoised(values), vectors) for values, vectors in self._solve(question, at_least)]
        return self._pairs

    def _solve(self, question: Question, at_least: int) -> list[Pair]:
        moments = self._moments
        if isinstance(moments, Sketch):
            return list(zip(*moments.leading(), strict=True))
        size = min(moments.count, self.width) if isinstance(moments, Samples) else self.width
        limit = size // 4
        if size > EIGH_SIZE and at_least <= limit // 2 and (pairs := self._leading(question, limit)):
            return pairs
        self._is_whole, self._solvers = True, []
        if isinstance(moments, Samples):
            return [eigen.from_rows(moments.centred(group), moments.degrees) for group in range(self.groups)]
        return list(zip(*eigen.full(moments.covariance()), strict=True))

    def _leading(self, question: Question, limit: int) -> list[Pair] | None:
        totals = self.total_variance
        self._solvers = self._solvers or [Leading(self._moments, g, total) for g, total in enumerate(totals)]
        pairs: list[Pair] = []
        for solver, total in zip(self._solvers, totals, strict=True):
            found = solver.until(partial(self._answer, question, total), limit)
            if found is None:
                return None
            pairs.append((found[0], eigen.with_fixed_signs(found[1].T)))
        answers = [self._answer(question, total, values) for (values, _), total in zip(pairs, totals, strict=True)]
        self._is_whole = all(answer is None for answer in answers)  # the space was exhausted before the question
        return pairs

    def _answer(self, question: Question, total: Tensor, values: Tensor) -> int | None:
        return question(self._denoised(values), total)

    def _denoised(self, values: Tensor) -> Tensor:
        return torch.where(values > self._moments.resolution * values[:1], values, 0)
