"""Batch norms that run in one pass with what follows them; parameters, buffers and statistics are the stock ones'."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pcn.fusion.chain import Chain
from pcn.fusion.handed import Handed
from pcn.fusion.hooks import watched
from pcn.fusion.pending import Pending
from pcn.fusion.standin import full
from pcn.fusion.switch import fuses
from pcn.kernels.ops import batch_moments, norm_project
from pcn.kernels.rows import as_rows, from_rows
from pcn.nn.functional import compute_dtype


class FusedNorm(_BatchNorm):
    """What the fused batch norms share; ``chain`` says what follows."""

    chain: Chain

    def forward(self, input: Tensor) -> Tensor:
        handed = input if isinstance(input, Handed) and input.untouched and self.shifts else None
        x = full(input) if handed is None else handed.product
        if not fuses(x) or not self._suits(x):
            return super().forward(full(input))
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        rows = as_rows(x)
        # A constant that was left out has a gradient of zero: with one, an optimizer decays it like any other weight.
        left_out = None if handed is None or not self.uses_batch else handed.layer.bias
        bias = self.bias if left_out is None else self.bias + 0 * left_out
        pending = Pending(self, rows, x.shape, self._statistics(rows, handed), uses_batch=self.uses_batch, bias=bias)
        # Only what the graphs have shown to be a ReLU, or a sum and a ReLU, may come next.
        waits = self.chain.relu and not watched((self, *self.chain.passed))
        return pending if waits else pending.tensor()  # type: ignore[return-value]

    def takes_from(self, layer: nn.Module, x: Tensor) -> bool:
        """Whether a convolution may leave its constant out: nobody sees its output, and a mean makes up for it."""
        holder, name = self.chain.place
        at_its_place = getattr(holder, name, None) is self and not getattr(layer, "_is_replica", False)
        return self.shifts and fuses(x) and at_its_place and not watched((layer, self, *self.chain.before))

    def _suits(self, x: Tensor) -> bool:
        if getattr(self, "_is_replica", False):  # of DataParallel: the chain is on another device
            return False
        enough = x.numel() > x.shape[1] * (1 if self.uses_batch else 0)  # of one row PyTorch says that it is too few
        return x.dim() > 1 and x.is_floating_point() and enough and not x.is_complex()

    @property
    def uses_batch(self) -> bool:
        """Whether the batch's own statistics are used."""
        return self.training or self.running_mean is None

    @property
    def shifts(self) -> bool:
        """Whether a constant in front of this may be left to the mean: the batch's takes it off by itself.

        From the running one it is taken off, through which no gradient flows.
        """
        return self.uses_batch or not torch.is_grad_enabled()

    def _statistics(self, rows: Tensor, handed: Handed | None) -> tuple[Tensor, Tensor]:
        """Return the mean and the inverse standard deviation to normalise with; the running ones follow."""
        left_out = None if handed is None else handed.constant
        if not self.uses_batch:
            assert self.running_mean is not None
            assert self.running_var is not None
            wide = torch.promote_types(rows.dtype, torch.float32)
            mean = self.running_mean.to(wide)
            mean = mean if left_out is None else mean - left_out.to(wide)
            return mean, (self.running_var.to(wide) + self.eps).rsqrt()
        moments = None if handed is None else handed.moments
        mean, variance = batch_moments(rows.detach()) if moments is None else moments
        if self.training and self.track_running_stats:
            self._follow(mean if left_out is None else mean + left_out.detach(), variance, rows.shape[0])
        return mean, (variance + self.eps).rsqrt()

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Move the running statistics as the stock layers do."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        if self.momentum is None:
            share: Any = (1.0 / self.num_batches_tracked).to(self.running_mean.dtype)
        else:
            share = self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_((variance * (count / (count - 1))).to(self.running_var.dtype), share)

    def finish(self, pending: Pending, *, emit: bool, project: bool) -> tuple[Tensor | None, Tensor | None]:
        """Compute what a pending value stands for: at its full width, projected, or both."""
        mean, inverse_std = pending.statistics
        rows, shape = pending.rows, pending.full_shape
        added = None if pending.added is None else as_rows(pending.added)
        basis = self.chain.readers[0].basis.to(compute_dtype(rows)) if project else None
        centre = self.chain.readers[0].mean if project and len(shape) == 2 else None  # see pcn.fusion.layers
        norm = self.weight, pending.bias, mean, inverse_std
        with torch.set_grad_enabled(pending.differentiable):
            how = pending.relu_applied, emit, pending.uses_batch, self.chain.pooled
            y, projected = norm_project(rows, added, *norm, basis, centre, *how)
        return from_rows(y, shape) if emit else None, from_rows(projected, shape) if project else None


class FusedBatchNorm1d(FusedNorm, nn.BatchNorm1d):
    """A fused ``nn.BatchNorm1d``."""


class FusedBatchNorm2d(FusedNorm, nn.BatchNorm2d):
    """A fused ``nn.BatchNorm2d``."""


class FusedBatchNorm3d(FusedNorm, nn.BatchNorm3d):
    """A fused ``nn.BatchNorm3d``."""


NORMS: dict[type[nn.Module], type[FusedNorm]] = {
    nn.BatchNorm1d: FusedBatchNorm1d,
    nn.BatchNorm2d: FusedBatchNorm2d,
    nn.BatchNorm3d: FusedBatchNorm3d,
}
