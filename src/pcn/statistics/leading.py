"""The leading eigenpairs of one group of channels, from moments that are applied rather than decomposed."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pcn.statistics.krylov import PROBE, Apply, Enough, Krylov, block_size, random_rows
from pcn.statistics.moments import Moments
from pcn.statistics.pieces import exact_products
from pcn.statistics.samples import Samples

TOLERANCE = 1e-5
ROUGH_TOLERANCE = 1e-4  # here fp32 products have done their part, and fp64 ones go on
ROUGH_FLOOR = 1e-6
SPARE = 8  # directions beyond those asked for: with them the last of those converge as fast as the first


class Leading:
    """A solver that starts with fp32 products where samples were kept, and always ends with fp64 ones."""

    def __init__(self, moments: Moments, group: int, trace: Tensor) -> None:
        self._moments, self._group, self._trace = moments, group, trace
        self._start = random_rows(block_size(trace.device), trace.new_empty(0, moments.width))
        self._rough: Krylov | None = None
        if isinstance(moments, Samples):
            products = _fp32_products(moments, group)
            self._rough = Krylov(products, trace, self._start, ROUGH_TOLERANCE, ROUGH_FLOOR, probe=False)
        self._fine: Krylov | None = None

    def until(self, enough: Enough, limit: int) -> tuple[Tensor, Tensor] | None:
        """Return eigenvalues (k,) and vectors (k, w) as :meth:`Krylov.until` does."""
        if self._rough is not None:
            found = self._rough.until(enough, limit)
            if found is None:
                return None
            start = self._rough.leading(len(found[0]) + SPARE)
            self._fine = self._fine_solver(torch.cat([start, random_rows(PROBE, start)]))
        elif self._fine is None:
            self._fine = self._fine_solver(self._start)
        return self._fine.until(enough, limit)

    def _fine_solver(self, start: Tensor) -> Krylov:
        resolution, numbers = self._moments.resolution, torch.finfo(self._trace.dtype)
        if self._moments.from_zero:  # samples are rounded by how they vary, and a mean beside that is exact
            of_mean = self._moments.mean_within()[self._group].square().sum()
            varies = 1 - float(of_mean / self._trace.clamp_min(numbers.tiny))
            resolution = min(resolution, max(resolution * varies, self._moments.width * numbers.eps))
        floor = resolution / 10
        apply = partial(self._moments.apply, group=self._group)
        return Krylov(apply, self._trace, start, TOLERANCE, floor, probe=self._rough is None)


def _fp32_products(samples: Samples, group: int) -> Apply:
    centred = samples.centred(group, torch.float32)
    degrees = samples.degrees

    def apply(rows: Tensor) -> Tensor:
        with exact_products(rows.device):
            return ((centred @ rows.float().T).T @ centred).to(rows.dtype) / degrees

    return apply
