"""The leading eigenpairs of a large symmetric operator, without its matrix: a block Krylov space that grows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 32  # rows multiplied at a time on a CPU; a GPU multiplies twice as many in the same time
PROBE = 8
LARGEST_BLOCK = 64
DEPENDENT = 1e-10  # a row with less than this outside the space adds nothing to it

Apply = Callable[[Tensor], Tensor]
Enough = Callable[[Tensor], int | None]


class Krylov:
    """A growing orthonormal basis Q of the space spanned by V, VC, VC², ... for a symmetric C.

    Vectors are rows throughout, which is how the products run fastest. ``apply`` computes q C for rows q (k, w);
    ``trace`` is the trace of C, which tells when nothing is left to find. A pair has converged when its residual is
    below ``tolerance`` times its eigenvalue or ``floor`` times the largest one; the error of an eigenvalue is of the
    order of the square of that. With ``probe`` random rows are tried before an answer is given; a start that holds some
    makes that unnecessary.
    """

    def __init__(
        self, apply: Apply, trace: Tensor, start: Tensor, tolerance: float, floor: float, probe: bool = True
    ) -> None:
        self._apply, self._trace, self._tolerance, self._floor = apply, trace, tolerance, floor
        self._probe, self._block = probe, block_size(start.device)
        self._width = start.shape[1]
        self.dimensions = 0
        self._room = start.new_empty(2, 8 * self._block, self._width)  # for Q and Q C
        self._reduced = start.new_empty(0, 0)  # Q C Qᵀ
        self._rounds = 0
        self._grow(start)

    def until(self, enough: Enough, limit: int) -> tuple[Tensor, Tensor] | None:
        """Grow until the leading pairs are found, or return None when that takes more than ``limit`` dimensions.

        ``enough`` is given eigenvalues in descending order and says how many of them, from the largest, are needed to
        answer the question; None means more than there are. Eigenvalues that do not come back are 0.
        """
        sure_of = None
        while True:
            values, turn = self._ritz()
            needed = enough(values)
            missing, rows = self._missing(values, turn, needed or 0)
            if needed is not None and not missing:
                if needed == sure_of or self._exhausted() or not (self._probe or self._rounds == 1):
                    return values[:needed], turn[:needed] @ self._basis
                # The Krylov space holds no more copies of a multiple eigenvalue than the block has rows; random rows,
                # multiplied twice, would show one that is missing.
                sure_of = needed
                if self._probe:
                    self._grow(random_rows(PROBE, self._basis))
                rows = self._image[-PROBE:]
            elif self._exhausted():
                return values, turn @ self._basis
            elif self.dimensions >= (limit if needed is not None else limit // 2):
                return None  # at half the limit an answer that is out of sight will not converge within it
            self._grow(rows)
            if needed is None:  # far from an answer: looking for it costs more than growing
                for _ in range(self.dimensions // (8 * self._block)):
                    self._grow(self._image[-len(rows) :])

    @property
    def _basis(self) -> Tensor:
        return self._room[0, : self.dimensions]

    @property
    def _image(self) -> Tensor:
        return self._room[1, : self.dimensions]

    def leading(self, count: int) -> Tensor:
        """The leading directions (count, w) as far as they are known, converged or not."""
        return self._ritz()[1][:count] @ self._basis

    def _ritz(self) -> tuple[Tensor, Tensor]:
        values, turn = torch.linalg.eigh(self._reduced)
        return values.flip(0).clamp_min(0), turn.flip(1).T

    def _missing(self, values: Tensor, turn: Tensor, needed: int) -> tuple[bool, Tensor]:
        """Whether one of the needed pairs has not converged, and rows that the space lacks to hold these pairs.

        The rows are residuals, first of the needed pairs, then of those that follow, so that a block is full.
        """
        values, turn = values[: needed + self._block], turn[: needed + self._block]
        residual = turn @ self._image - (values.unsqueeze(1) * turn) @ self._basis
        allowed = torch.maximum(self._tolerance * values, self._floor * values[:1])
        missing = torch.linalg.vector_norm(residual, dim=1) > allowed
        count = int(missing[:needed].sum())
        return count > 0, residual[missing][: min(max(count, self._block), LARGEST_BLOCK)]

    def _exhausted(self) -> bool:
        left = self._trace - self._reduced.diagonal().sum()
        return self.dimensions == self._width or bool(left <= self._floor * self._trace)

    def _grow(self, rows: Tensor) -> None:
        if self.dimensions == self._width:
            return
        block = self._orthonormal(rows)
        if len(block) == 0:  # the space is invariant, yet does not hold all of the variance
            block = self._orthonormal(random_rows(self._block, self._basis))
        image = self._apply(block)
        across, corner = self._basis @ image.T, block @ image.T
        top = torch.cat([self._reduced, across], dim=1)
        bottom = torch.cat([across.T, (corner + corner.T) / 2], dim=1)
        self._reduced = torch.cat([top, bottom])
        size = self.dimensions + len(block)
        if size > self._room.shape[1]:
            more = self._room.new_empty(2, max(size, self._room.shape[1]), self._width)
            self._room = torch.cat([self._room, more], dim=1)
        self._room[0, self.dimensions : size] = block
        self._room[1, self.dimensions : size] = image
        self._rounds += 1
        self.dimensions = size

    def _orthonormal(self, block: Tensor) -> Tensor:
        """Orthonormalise rows against the basis and each other; those that add nothing are left out."""
        block = block[: self._width - self.dimensions]
        block = block / torch.linalg.vector_norm(block, dim=1, keepdim=True).clamp_min(torch.finfo(block.dtype).tiny)
        for _ in range(2):  # one round leaves traces of the basis where a row nearly lies in it
            block = block - (block @ self._basis.T) @ self._basis
            columns, triangle = torch.linalg.qr(block.T)
            block = columns.T[triangle.diagonal().abs() > DEPENDENT]
        return block


def block_size(device: torch.device) -> int:
    return BLOCK if device.type == "cpu" else 2 * BLOCK


def random_rows(count: int, like: Tensor) -> Tensor:
    """Rows of the same width, device and precision, the same ones every time for a given shape."""
    dimensions, width = like.shape
    generator = torch.Generator().manual_seed(dimensions)
    return torch.randn(count, width, generator=generator, dtype=torch.float64, device="cpu").to(like)
