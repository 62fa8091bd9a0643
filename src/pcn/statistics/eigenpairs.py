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
                found = eigen.only_values(self.moments.covariance())
                self._values = [self._denoised(values, group) for group, values in enumerate(found)]
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
        totals = enumerate(self.total_variance)
        self.solvers = self.solvers or [Leading(self.moments, group, total) for group, total in totals]
        pairs: list[Pair] = []
        for group, solver in enumerate(self.solvers):
            found = solver.until(partial(self._answer, question, group), limit)
            if found is None:
                return None
            pairs.append((found[0], eigen.with_fixed_signs(found[1].T)))
        answers = [self._answer(question, group, values) for group, (values, _) in enumerate(pairs)]
        self._is_whole = all(answer is None for answer in answers)  # the space was exhausted before the question
        return pairs

    def _answer(self, question: Question, group: int, values: Tensor) -> int | None:
        return question(self._denoised(values, group), self.total_variance[group])

    def _whole(self, pairs: Iterable[Pair]) -> list[Pair]:
        self._is_whole, self.solvers = True, []
        return self._clean(pairs)

    def _clean(self, pairs: Iterable[Pair]) -> list[Pair]:
        return [(self._denoised(values, group), vectors) for group, (values, vectors) in enumerate(pairs)]

    def _denoised(self, values: Tensor, group: int) -> Tensor:
        return torch.where(values > self._floor(values, group), values, 0)

    def _floor(self, values: Tensor, group: int) -> Tensor:
        """What rounding may have made: samples are rounded by how they vary, and a mean beside that is exact.

        With m the mean within, the larger of C + mmᵀ's first eigenvalue less |m|² and its second one is C's first, or
        up to a half less.
        """
        largest = values[:1]
        if not self.moments.from_zero or not len(values):
            return self.moments.resolution * largest
        of_mean = self.moments.mean_within()[group].square().sum()
        varies = torch.cat([largest - of_mean, values[1:2]]).amax()
        exact = self.moments.width * torch.finfo(values.dtype).eps
        return torch.maximum(self.moments.resolution * varies, exact * largest)
