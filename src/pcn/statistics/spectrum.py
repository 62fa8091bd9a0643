"""The eigenvalues and eigenvectors of an activation's covariance, found as far as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial

import torch
from torch import Tensor

from pcn.errors import ConfigError, StatisticsError
from pcn.statistics import eigen
from pcn.statistics.leading import Leading
from pcn.statistics.moments import Covariance, Moments
from pcn.statistics.samples import Samples
from pcn.statistics.sketch import Sketch

EIGH_SIZE = 1536  # up to here all eigenpairs cost little
BEGINNING = 256  # dimensions of a Krylov space in which few pairs have converged yet

Pair = tuple[Tensor, Tensor]  # eigenvalues (k,) in descending order, eigenvectors (w, k)
Question = Callable[[Tensor, Tensor], int | None]  # known eigenvalues, total variance -> how many of them answer it


class Spectrum:
    """The spectrum of one activation, lazy: each question goes to the cheapest solver, and answers are kept.

    Small problems get a full ``eigh``, and those of few samples one in as many dimensions. Large ones get a Krylov
    space that grows until the leading eigenpairs answer the question. Where that would take a quarter of them, all
    eigenvalues are found, and their vectors when they are asked for. Eigenvalues that rounding drowns are 0, and
    directions without variance complete the basis.
    """

    def __init__(self, moments: Moments, layer: str) -> None:
        self.layer, self.groups, self.width = layer, moments.groups, moments.width
        self._moments = moments
        self._pairs: list[Pair] | None = None  # one for each group
        self._is_whole = False  # whether eigenvalues that are not in the pairs are 0
        self._values: list[Tensor] | None = None  # all of them, where they were found without vectors
        self._completed: dict[int, Pair] = {}  # what was last given beyond the pairs
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
        return max((float(values[0]) for values in self._known(lambda values, total: 1) if len(values)), default=0.0)

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
        if not isinstance(self._moments, Covariance) or self.width <= EIGH_SIZE:
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
        for values, total in zip(self._known(question, at_least), self.total_variance, strict=True):
            answer = question(values, total)
            if answer is None and isinstance(self._moments, Sketch):
                raise StatisticsError(
                    f"{self.layer!r}: the {len(values)} directions that were kept, which hold "
                    f"{float(values.sum() / total):.1%} of the variance, are too few for this rank rule; "
                    "give analyze a larger max_rank"
                )
            counts.append(int((values > 0).sum()) if answer is None else count(answer))
        return max(counts)

    def _known(self, question: Question, at_least: int = 1) -> list[Tensor]:
        """Return eigenvalues that answer the question in every group, or all there are."""
        if self._values is None and not self._answered(question):
            self._pairs = self._solve(question, at_least) or self._pairs
            if not self._answered(question):
                self._values = [self._denoised(values) for values in eigen.only_values(self._moments.covariance())]
        return self._values or [values for values, _ in self._pairs or ()]

    def _ask(self, question: Question, at_least: int) -> list[Pair]:
        """Return pairs that answer the question in every group, or all there are."""
        if self._pairs is None or not self._answered(question):
            self._pairs = self._solve(question, at_least) or self._whole(
                zip(*eigen.full(self._moments.covariance()), strict=True)
            )
        return self._pairs

    def _answered(self, question: Question) -> bool:
        """Whether the pairs that are known answer the question, or there are no others."""
        if self._pairs is None or self._is_whole or isinstance(self._moments, Sketch):
            return self._pairs is not None
        pairs = zip(self._pairs, self.total_variance, strict=True)
        return all(question(values, total) is not None for (values, _), total in pairs)

    def _solve(self, question: Question, at_least: int) -> list[Pair] | None:
        """Return such pairs, unless it would take all those of a large covariance."""
        moments = self._moments
        if isinstance(moments, Sketch):
            return self._clean(zip(*moments.leading(), strict=True))
        few = isinstance(moments, Samples) or 2 * moments.count <= self.width  # samples, which bound the rank
        size = min(moments.count, self.width) if few else self.width
        limit = size // 4
        # Two dimensions and more are spent on every pair, after those that it takes until the first converge.
        hopeful = 2 * at_least <= limit - min(BEGINNING, limit // 2)
        if size > EIGH_SIZE and hopeful and (pairs := self._leading(question, limit)):
            return self._clean(pairs)
        if isinstance(moments, Samples):
            return self._whole(eigen.from_rows(moments.centred(g), moments.degrees) for g in range(self.groups))
        if few:
            return self._whole(zip(*eigen.of_rank(moments.covariance(), moments.degrees), strict=True))
        if size <= EIGH_SIZE:
            return self._whole(zip(*eigen.full(moments.covariance()), strict=True))
        return None

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

    def _whole(self, pairs: Iterable[Pair]) -> list[Pair]:
        self._is_whole, self._solvers = True, []
        return self._clean(pairs)

    def _clean(self, pairs: Iterable[Pair]) -> list[Pair]:
        return [(self._denoised(values), vectors) for values, vectors in pairs]

    def _denoised(self, values: Tensor) -> Tensor:
        return torch.where(values > self._moments.resolution * values[:1], values, 0)
