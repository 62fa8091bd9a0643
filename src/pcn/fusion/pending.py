"""A value between a batch norm and its readers that is worked out when it is known who reads it, in one pass."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pcn.errors import PCNError
from pcn.fusion.standin import StandIn, full

if TYPE_CHECKING:
    from pcn.fusion.layers import FusedLayer
    from pcn.fusion.norms import FusedNorm

RELU = frozenset({F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_})
ADD = frozenset({torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, operator.add})
ADD_IN_PLACE = frozenset({Tensor.add_, Tensor.__iadd__, operator.iadd})
IN_PLACE = frozenset({torch.relu_, F.relu_, Tensor.relu_})


class Pending(StandIn):
    """bn(z), then perhaps + s, then ReLU: not computed yet.

    It goes from batch norm to its sum and ReLU, and on from there only where the graphs show principal component layers
    of ours and other chains' sums as its only readers. Should anything else be done with it, that happens to the tensor
    itself, computed then with the statistics and the gradient mode of the batch norm's call.
    """

    def __init__(
        self,
        norm: FusedNorm,
        rows: Tensor,
        shape: torch.Size,
        statistics: tuple[Tensor, Tensor],
        added: Tensor | None = None,
        relu: bool = False,
        *,
        uses_batch: bool,
        bias: Tensor | None = None,
        differentiable: bool | None = None,
    ) -> None:
        self.norm, self.rows, self.full_shape, self.statistics = norm, rows, shape, statistics
        self.bias = norm.bias if bias is None else bias
        self.added, self.relu_applied = added, relu
        self.uses_batch = uses_batch
        self.differentiable = torch.is_grad_enabled() if differentiable is None else differentiable
        self.versions = self._versions()
        self.value: Tensor | None = None
        self.projected: Tensor | None = None
        self.changed = False  # in place, after it was computed

    def with_relu(self) -> Pending | Tensor:
        if self.relu_applied or self.value is not None or not self._same_mode:
            return self.tensor().relu()
        return self._followed_by(self.added, relu=True).for_readers()

    def plus(self, other: Any) -> Pending | Tensor:
        """Add in the same pass what has the same shape and dtype; anything else is added afterwards."""
        other = full(other)
        same = isinstance(other, Tensor) and other.shape == self.full_shape and other.dtype == self.rows.dtype
        if not same or not self.bare or not self._same_mode:
            return torch.add(self.tensor(), other)
        return self._followed_by(other, relu=False)

    @property
    def _same_mode(self) -> bool:
        return torch.is_grad_enabled() == self.differentiable

    def _followed_by(self, added: Tensor | None, *, relu: bool) -> Pending:
        kept: dict[str, Any] = {"uses_batch": self.uses_batch, "bias": self.bias, "differentiable": self.differentiable}
        return Pending(self.norm, self.rows, self.full_shape, self.statistics, added, relu, **kept)

    def for_readers(self) -> Pending | Tensor:
        """What the code behind ReLU is given: a tensor, unless only fused modules read it."""
        chain = self.norm.chain
        if not chain.projects:
            return self.tensor()
        if chain.emit:
            self._run()
        return self

    @property
    def bare(self) -> bool:
        """Whether this is batch norm's output alone, to which the chain adds something."""
        fresh = self.added is None and not self.relu_applied and self.value is None
        return fresh and self.norm.chain.added

    def become(self, other: Pending | Tensor) -> Pending | Tensor:
        """Be what an operator in place has made of this, and return that."""
        if not isinstance(other, Pending):
            self.value, self.changed = other, True
            return other
        self.added, self.relu_applied = other.added, other.relu_applied
        self.value, self.projected = other.value, other.projected
        return self

    def change(self) -> Tensor:
        """The value at its full width, for somebody who writes to it."""
        value, self.changed = self.tensor(), True
        return value

    def projection_for(self, reader: FusedLayer) -> Tensor | None:
        """The projection that this reader wants, or None where the chain has none for it."""
        if self.changed or not self.relu_applied or not self.norm.chain.projects_for(reader):
            return None
        self._run()
        return self.projected

    def tensor(self) -> Tensor:
        """The value at its full width."""
        if self.value is None:
            self.value, _ = self._finished(emit=True, project=False)
        assert self.value is not None
        return self.value

    def _run(self) -> None:
        if self.projected is None and self.value is None:
            chain = self.norm.chain
            self.value, self.projected = self._finished(emit=chain.emit, project=chain.projects)

    def _finished(self, *, emit: bool, project: bool) -> tuple[Tensor | None, Tensor | None]:
        now = self._versions()
        if now is not None and self.versions is not None and now != self.versions:
            raise PCNError(
                "an activation behind a fused batch norm was put aside and read after the batch norm's weights or "
                "inputs had changed: read it earlier, or run the model inside `with pcn.fusion.plain():`"
            )
        return self.norm.finish(self, emit=emit, project=project)

    def _versions(self) -> list[int] | None:
        """How often what this is made of was written to; None in compiled code, which does not know."""
        if torch.compiler.is_compiling():
            return None
        made_of = self.rows, self.norm.weight, self.norm.bias, *self.statistics
        return [tensor._version for tensor in made_of if not tensor.is_inference()]

    def __add__(self, other: Any) -> Any:
        return _sum(self, other)

    __radd__ = __add__

    def __iadd__(self, other: Any) -> Pending | Tensor:
        return self.become(self.plus(other))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if function in RELU and isinstance(first, Pending):
            if function in IN_PLACE or kwargs.get("inplace"):
                return first.become(first.with_relu())
            return first.with_relu()
        if function in ADD and len(args) == 2 and not kwargs:
            return _sum(args[0], args[1])
        if function in ADD_IN_PLACE and len(args) == 2 and not kwargs and isinstance(first, Pending):
            return first.become(first.plus(args[1]))
        return super().__torch_function__(function, types, args, kwargs)


def _sum(left: Any, right: Any) -> Any:
    """Add in the pass of whichever of the two is still a bare batch norm."""
    if isinstance(left, Pending) and left.bare:
        return left.plus(right)
    if isinstance(right, Pending) and right.bare:
        return right.plus(left)
    return torch.add(full(left), full(right))
