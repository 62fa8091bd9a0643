"""What every principal component layer has in common."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pcn.errors import ConfigError, PlanError
from pcn.layers import Transformed
from pcn.maths.transform import Projected
from pcn.nn.functional import of_patterns


class PCModule(Transformed):
    """Base of the layers that compute W~ Uᵀ(x - mu) + b~: only ``weight`` and ``bias`` are trained.

    ``basis`` (m, r) and ``mean`` (m,) are buffers, or parameters with ``train_basis``. ``offset_weight`` is the frozen
    part of the weight outside the basis; ``output_basis`` (n, s) expands s trained outputs to n; ``kernel_basis``
    (g*r, q, *kernel) holds q patterns of taps for every direction, of which the kernel is made. All may be None.
    """

    weight: nn.Parameter
    bias: nn.Parameter
    basis: Tensor
    mean: Tensor
    offset_weight: Tensor | None
    output_basis: Tensor | None
    kernel_basis: Tensor | None
    groups: int = 1
    stock: ClassVar[type[Any]]  # the layer that this one stands for
    stood_for: type[nn.Module] | None = None  # the subclass of it that stood here, where it was one

    def _make_tensors(
        self,
        inputs: int,
        outputs: int,
        kernel: tuple[int, ...],
        rank: int,
        output_rank: int | None,
        train_basis: bool,
        offset: bool,
        kernel_rank: int | None = None,
        **factory: Any,
    ) -> None:
        for name, value in (("rank", rank), ("output_rank", output_rank)):
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}: give a whole number of at least 1")
        if kernel_rank is not None and not (type(kernel_rank) is int and 1 <= kernel_rank <= math.prod(kernel)):
            raise ConfigError(
                f"kernel_rank={kernel_rank!r}: give a whole number from 1 to the {math.prod(kernel)} taps"
            )
        trained = outputs if output_rank is None else self.groups * output_rank
        taps = kernel if kernel_rank is None else (kernel_rank,)
        self.weight = nn.Parameter(torch.empty(trained, rank, *taps, **factory))
        self.bias = nn.Parameter(torch.empty(outputs, **factory))
        for name, shape in (("basis", (inputs, rank)), ("mean", (inputs,))):
            tensor = torch.empty(shape, **factory)
            if train_basis:
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)
        offset_shape = (outputs, inputs // self.groups, *kernel)
        self.register_buffer("offset_weight", torch.empty(offset_shape, **factory) if offset else None)
        output_shape = None if output_rank is None else (outputs, output_rank)
        self.register_buffer("output_basis", None if output_shape is None else torch.empty(output_shape, **factory))
        patterns = None if kernel_rank is None else (self.groups * rank, kernel_rank, *kernel)
        self.register_buffer("kernel_basis", None if patterns is None else torch.empty(patterns, **factory))
        self.reset_parameters()

    @property
    def full_kernel(self) -> Tensor:
        """The weight with every tap of the kernel, (n, r, *kernel)."""
        return self.weight if self.kernel_basis is None else of_patterns(self.weight, self.kernel_basis, self.groups)

    @property
    def kernel_rank(self) -> int | None:
        """The number of patterns of taps in which each direction is read."""
        return None if self.kernel_basis is None else self.kernel_basis.shape[1]

    @property
    def rank(self) -> int:
        """The number of directions (per group) in which the layer reads its input."""
        return self.basis.shape[1]

    @property
    def output_rank(self) -> int | None:
        """The number of trained outputs (per group) behind the output basis."""
        return None if self.output_basis is None else self.output_basis.shape[1]

    @property
    def train_basis(self) -> bool:
        return isinstance(self.basis, nn.Parameter)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start afresh: random orthonormal bases, zero mean, weight and bias drawn as the stock layer draws them."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        bound = 1 / math.sqrt(self.weight[0].numel())
        nn.init.uniform_(self.bias, -bound, bound)
        nn.init.zeros_(self.mean)
        _fill_orthonormal_(self.basis, self.groups)
        if self.offset_weight is not None:
            nn.init.zeros_(self.offset_weight)
        if self.output_basis is not None:
            _fill_orthonormal_(self.output_basis, self.groups)
        if self.kernel_basis is not None:
            for patterns in self.kernel_basis:
                across = torch.empty_like(patterns).flatten(1).T  # a view of them there is not in every layout
                _fill_orthonormal_(across, 1)
                patterns.copy_(across.T.reshape(patterns.shape))

    @torch.no_grad()
    def load_(self, projected: Projected) -> None:
        """Copy the tensors of a transformed layer in; each must have the shape that this layer has."""
        for name, given in projected._asdict().items():
            own = getattr(self, name)
            shapes = [None if tensor is None else tuple(tensor.shape) for tensor in (own, given)]
            if shapes[0] != shapes[1]:
                raise PlanError(f"{name} of {self} has shape {shapes[0]}, but {shapes[1]} was given")
            if own is not None:
                own.copy_(given)

    def _extra(self) -> str:
        """What ``extra_repr`` says beyond the stock layer's."""
        said = f", rank={self.rank}"
        if self.output_basis is not None:
            said += f", output_rank={self.output_rank}"
        if self.kernel_basis is not None:
            said += f", kernel_rank={self.kernel_rank}"
        if self.train_basis:
            said += ", train_basis=True"
        if self.offset_weight is not None:
            said += ", offset=True"
        return said


def _fill_orthonormal_(basis: Tensor, groups: int) -> None:
    """Fill each group's rows so that its columns are orthonormal, or its rows where there are fewer of them."""
    for rows in basis.chunk(groups):
        wide = torch.promote_types(rows.dtype, torch.float32)  # QR knows no half precision
        rows.copy_(nn.init.orthogonal_(torch.empty_like(rows, dtype=wide)))
