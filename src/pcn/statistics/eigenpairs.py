"""The eigenpairs of an activation's covariance, by the cheapest solver that answers what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from pcn.statistics import eigen
from pcn.statistics.leading import Leading
from pcn.statistics.moments import Moments
from pcn.statistics.samples import Samples
from pcn.statistics.sketch import Sketch

EIGH_SIZE = 1536  # up to here all eigenpairs cost little
BEGINNING = 256  # dimensions of a Krylov space in which few pairs have converged yet

Pair = tuple[Tensor, Tensor]  # eigenvalues (k,) in descending order, eigenvectors (w, k)
Question = Callable[[Tensor, Tensor], int | None]  # known eigenvalues, total variance -> how many of them answer it


class Eigenpairs:
    """The pairs of every group, found as far as questions need them, and kept.

    Small problems get a full ``eigh``, and those of few samples one in as many dimensions. Large ones get a Krylov
    space that grows until the leading eigenpairs answer the question. Where that would take a quarter of them, all
    eigenvalues are found, and their vectors when they are asked for. Eigenvalues that rounding drowns are 0.
    """

    def __init__(self, moments: Moments) -> None:
        self.moments = moments
        self.total_variance = moments.variances().sum(1)
        self.solvers: list[Leading] = []  # of large problems that were not solved whole
        self._pairs: list[Pair] | None = None  # one for each group
        self._is_whole = False  # whether eigenvalues that are not in the pairs are 0
        self._values: list[Tensor] | None = None  # all of them, where they were found without vectors

    def values(self, question: Question, at_least: int = 1) -> list[Tensor]:
        """Return eigenvalues that answer the question in every group, or all there are."""
        if self._values is None and not self._answered(question):
            self._pairs = self._solve(question, at_least) or self._pairs
            if not self._answered(question):
                self._values = [self._denoised(values) for values in eigen.only_values(self.moments.covariance())]
        return self._values or [values for values, _ in self._pairs or ()]

    def pairs(self, question: Question, at_least: int) -> list[Pair]:
        """Return pairs that answer the question in every group, or all there are."""
        if self._pairs is None or not self._answered(question):
            self._pairs = self._solve(question, at_least) or self._whole(
                zip(*eigen.full(self.moments.covariance()), strict=True)
            )
        return self._pairs

    def _answered(self, question: Question) -> bool:
        """Whether the pairs that are known answer the question, or there are no others."""
        if self._pairs is None or self._is_whole or isinstance(self.moments, Sketch):
            return self._pairs is not None
        pairs = zip(self._pairs, self.total_variance, strict=True)
        return all(question(values, total) is not None for (values, _), total in pairs)

    def _solve(self, question: Question, at_least: int) -> list[Pair] | None:
        """Return such pairs, unless it would take all those of a large covariance."""
        moments = self.moments
        if isinstance(moments, Sketch):
            return self._clean(zip(*moments.leading(), strict=True))
        few = isinstance(moments, Samples) or 2 * moments.count <= moments.width  # samples, which bound the rank
        size = min(moments.count, moments.width) if few else moments.width
        limit = size // 4
        # Two dimensions and more are spent on every pair, after those that it takes until the first converge.
        hopeful = 2 * at_least <= limit - min(BEGINNING, limit // 2)
        if size > EIGH_SIZE and hopeful and (pairs := self._leading(question, limit)):
            return self._clean(pairs)
        if isinstance(moments, Samples):
            return self._whole(eigen.from_rows(moments.centred(g), moments.degrees) for g in range(moments.groups))
        if few:
            return self._whole(zip(*eigen.of_rank(moments.covariance(), moments.shown), strict=True))
        if size <= EIGH_SIZE:
            return self._whole(zip(*eigen.full(moments.covariance()), strict=True))
        return None

    def _leading(self, question: Question, limit: int) -> list[Pair] | None:
        totals = self.total_variance
        self.solvers = self.solvers or [Leading(self.moments, g, total) for g, total in enumerate(totals)]
        pairs: list[Pair] = []
        for solver, total in zip(self.solvers, totals, strict=True):
            found = solver.until(partial(self._answer, question, total), limit)
            if found is None:
                return None
            pairs.append((found[0], eigen.with_fixed_signs(found[1].T)))
        answers = [self._answer(question, total, values) for (values, _), total in zip(pairs, totals, strict=True)]
        self._is_whole = all(answer is None for answer in answers)  # the space was exhausted before the question
        return pairs

    def _answer(self, question: Question, total: Tensor, values: Tensor) -> int | None:
        return question(self._denoised(values), total)

    def _whole(self, pairs: Iterable[Pair]) -> list[Pair]:
        self._is_whole, self.solvers = True, []
        return self._clean(pairs)

    def _clean(self, pairs: Iterable[Pair]) -> list[Pair]:
        return [(self._denoised(values), vectors) for values, vectors in pairs]

    def _denoised(self, values: Tensor) -> Tensor:
        return torch.where(values > self.moments.resolution * values[:1], values, 0)
