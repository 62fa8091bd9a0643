"""What every principal component layer has in common."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pcn.errors import ConfigError, PlanError
from pcn.layers import Transformed
from pcn.maths.patterns import Patterns, expanded
from pcn.maths.transform import Projected

TENSORS = ("weight", "bias", "basis", "mean", "offset_weight", "output_basis", "kernel_basis", "kernel_mask")


class PCModule(Transformed):
    """Base of the layers that compute V W~ Uᵀ(x - mu) + b~: only ``weight`` and ``bias`` are trained.

    One that is not ``centred``, as none without a ``bias`` (which is None then) is, reads its input as it is: its
    ``mean`` stays zero, and is never trained. Without a ``basis``, which is None where there is an output basis alone,
    nor is there a ``mean``.
    ``basis`` (m, r) and ``mean`` (m,) are buffers, or parameters with ``train_basis``. ``offset_weight`` is the frozen
    part of the weight outside the basis; ``output_basis`` (n, s) expands s trained outputs to n; ``kernel_basis``
    (g*r*q, *kernel) holds patterns of taps, q for a direction on average, of which the kernel is made, and
    ``kernel_mask`` says how many belong to each direction (:class:`pcn.maths.patterns.Patterns`). All may be None.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    basis: Tensor | None
    mean: Tensor | None
    offset_weight: Tensor | None
    output_basis: Tensor | None
    kernel_basis: Tensor | None
    kernel_mask: Tensor | None
    groups: int = 1
    stock: ClassVar[type[Any]]  # the layer that this one stands for
    stood_for: type[nn.Module] | None = None  # the subclass of it that stood here, where it was one
    centred: bool = True
    channels_last: bool = False  # whether its weight lay so in memory, which coordinates along patterns do not show

    def _make_tensors(
        self,
        inputs: int,
        outputs: int,
        kernel: tuple[int, ...],
        rank: int | None,
        output_rank: int | None,
        train_basis: bool,
        offset: bool,
        kernel_rank: int | None = None,
        bias: bool = True,
        centred: bool = True,
        **factory: Any,
    ) -> None:
        for name, value in (("rank", rank), ("output_rank", output_rank)):
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}: give a whole number of at least 1")
        if rank is None and (output_rank is None or kernel_rank is not None):
            asked = "" if kernel_rank is None else f", kernel_rank={kernel_rank}"
            raise ConfigError(f"rank=None, output_rank={output_rank}{asked}: give a rank, or an output rank alone")
        if kernel_rank is not None and not (type(kernel_rank) is int and 1 <= kernel_rank <= math.prod(kernel)):
            raise ConfigError(
                f"kernel_rank={kernel_rank!r}: give a whole number from 1 to the {math.prod(kernel)} taps"
            )
        trained = outputs if output_rank is None else self.groups * output_rank
        read = inputs // self.groups if rank is None else rank
        shape = (read, *kernel) if kernel_rank is None else (read * kernel_rank,)
        self.weight = nn.Parameter(torch.empty(trained, *shape, **factory))
        self.register_parameter("bias", nn.Parameter(torch.empty(outputs, **factory)) if bias else None)
        self.centred = centred and bias and rank is not None
        for name, shape in (("basis", (inputs, read)), ("mean", (inputs,))):
            tensor = None if rank is None else torch.empty(shape, **factory)
            if tensor is not None and train_basis and (self.centred or name == "basis"):
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)
        offset_shape = (outputs, inputs // self.groups, *kernel)
        self.register_buffer("offset_weight", torch.empty(offset_shape, **factory) if offset else None)
        output_shape = None if output_rank is None else (outputs, output_rank)
        self.register_buffer("output_basis", None if output_shape is None else torch.empty(output_shape, **factory))
        patterns, mask = None, None
        if kernel_rank is not None:
            patterns = torch.empty(self.groups * read * kernel_rank, *kernel, **factory)
            mask = torch.empty(self.groups * read, math.prod(kernel), **factory)
        self.register_buffer("kernel_basis", patterns)
        self.register_buffer("kernel_mask", mask)
        self.reset_parameters()

    @property
    def full_kernel(self) -> Tensor:
        """The weight with every tap of the kernel, (n, r, *kernel)."""
        patterns = self.tap_patterns
        return self.weight if patterns is None else expanded(self.weight, patterns, self.groups)

    @property
    def tap_patterns(self) -> Patterns | None:
        """The patterns of taps in which directions are read, where they are not read by every tap."""
        if self.kernel_basis is None or self.kernel_mask is None:
            return None
        return Patterns(self.kernel_basis, self.kernel_mask)

    @property
    def kernel_rank(self) -> int | None:
        """The number of patterns of taps in which a direction is read, on average."""
        return None if self.kernel_basis is None or self.rank is None else self.weight.shape[1] // self.rank

    @property
    def rank(self) -> int | None:
        """The number of directions (per group) in which the layer reads its input; None where it reads it as it is."""
        return None if self.basis is None else self.basis.shape[1]

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
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)
        if self.mean is not None:
            nn.init.zeros_(self.mean)
        if self.basis is not None:
            _fill_orthonormal_(self.basis, self.groups)
        if self.offset_weight is not None:
            nn.init.zeros_(self.offset_weight)
        if self.output_basis is not None:
            _fill_orthonormal_(self.output_basis, self.groups)
        if self.kernel_basis is not None:
            self._fill_patterns_(self.kernel_basis)
        self.deal_patterns_evenly_()

    def deal_patterns_evenly_(self) -> None:
        """Let every direction have as many patterns of taps as every other, where there are any."""
        if self.kernel_mask is not None:
            self.kernel_mask.zero_()[:, : self.kernel_rank] = 1

    def _fill_patterns_(self, patterns: Tensor) -> None:
        """As many random orthonormal patterns for each direction."""
        assert self.kernel_rank is not None
        for of_direction in patterns.split(self.kernel_rank):
            across = torch.empty_like(of_direction).flatten(1).T  # a view of them there is not in every layout
            _fill_orthonormal_(across, 1)
            of_direction.copy_(across.T.reshape(of_direction.shape))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        *_, errors = arguments
        if not self.centred and self.mean is not None and not self.mean.is_meta and bool(self.mean.any()):
            why = "has no bias that makes up for it" if self.bias is None else "was made to read its input as it is"
            errors.append(f"{prefix}mean is not zero, and the layer {why}")
        if self.kernel_mask is None or self.kernel_mask.is_meta:
            return
        wanted = (self.rank or 0) * (self.kernel_rank or 0)
        dealt = (self.kernel_mask > 0.5).reshape(self.groups, -1).sum(1)
        if any(count != wanted for count in dealt.tolist()):
            errors.append(f"{prefix}kernel_mask gives directions {dealt.tolist()} patterns of taps, there are {wanted}")

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
        said = "" if self.rank is None else f", rank={self.rank}"
        if self.output_basis is not None:
            said += f", output_rank={self.output_rank}"
        if self.kernel_basis is not None:
            said += f", kernel_rank={self.kernel_rank}"
        if self.mean is not None and self.bias is not None and not self.centred:
            said += ", centred=False"
        if self.train_basis:
            said += ", train_basis=True"
        if self.offset_weight is not None:
            said += ", offset=True"
        return said


def check_own_tensors(what: str, layer: PCModule) -> None:
    """Raise where a layer, which is called ``what`` then, holds more than it was made with.

    What is made of it, or saved, has no place for that.
    """
    held = (*layer._parameters, *layer._buffers, *layer._modules)
    more = next((each for each in held if each not in TENSORS), None)
    if more is not None:
        raise PlanError(
            f"{what} was given {more!r} after it was transformed: make pruning, a norm of its weight or any other "
            "parametrization permanent first (prune.remove, remove_weight_norm, remove_parametrizations of "
            "torch.nn.utils), and keep other tensors elsewhere"
        )


def _fill_orthonormal_(basis: Tensor, groups: int) -> None:
    """Fill each group's rows so that its columns are orthonormal, or its rows where there are fewer of them."""
    for rows in basis.chunk(groups):
        wide = torch.promote_types(rows.dtype, torch.float32)  # QR knows no half precision
        rows.copy_(nn.init.orthogonal_(torch.empty_like(rows, dtype=wide)))
