"""What becomes of one layer: its sizes, and what it trains, stores and computes before and after."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pcn.config import BasisKind, Order, Stepper

NO_RANK = "no rank asked for"  # the reason of layers whose input nobody wants to change
FROZEN = "its weight is frozen"  # that of layers from which a budget of what is trained takes nothing


@dataclass(frozen=True)
class LayerPlan:
    """What becomes of one layer: shapes and reasons only, no weights."""

    name: str
    kind: str
    in_features: int
    out_features: int
    groups: int = 1
    kernel: tuple[int, ...] = ()
    bias: bool = True  # whether the layer has a bias; a transformed one gains one where it is centred
    frozen: bool = False  # whether its weight takes no gradients, and what that becomes takes none either
    rank: int | None = None  # directions of the input that are kept (per group); None: the input stays as it is
    kept_inputs: int = 0  # inputs left after the layers before have dropped outputs
    kept_outputs: int = 0  # outputs left after dropping
    order: Order = "truncate_first"
    # Outputs (per group) that are trained behind an output basis, also where the input stays; None: all are.
    output_rank: int | None = None
    basis: BasisKind = "pca"
    precondition: float = 0.0
    sized_for: Stepper = "sgd"
    centred: bool = True  # whether it reads its input without its mean
    train_basis: bool = False
    keep_dropped: bool = False
    activation: str | None = None  # layers with the same one read the same input and share its basis
    norm_after: str | None = None  # the batch norm that alone reads the output: it can absorb a gained bias
    norm_frozen: bool = False  # whether that norm does not normalise by the batch where the model trains
    norm_unsure: bool = False  # whether another as wide, which the traced call has not reached, may read it as well
    # Positions of input and output per sample, where the graph is known: fractions where samples share them.
    in_positions: int | float | None = None
    out_positions: int | float | None = None
    reason: str | None = None  # why the input is not transformed
    output_reason: str | None = None  # why no output is dropped, or fewer than asked for
    note: str | None = None
    bias_frozen: bool | None = None  # whether its bias takes no gradients; None: as its weight, and a gained one
    tied: bool = False  # whether its weight is a layer's before it, where it is counted
    kernel_rank: int | None = None  # patterns of taps for a direction, on average; None: every tap is trained
    stride: int = 1  # positions of the input for each of the output, in all dimensions together

    def __post_init__(self) -> None:
        object.__setattr__(self, "kept_inputs", self.kept_inputs or self.in_features)
        object.__setattr__(self, "kept_outputs", self.kept_outputs or self.out_features)

    def with_note(self, text: str) -> LayerPlan:
        """The same plan with something more to say."""
        return replace(self, note="; ".join(filter(None, (self.note, text))))

    @property
    def batch_normed(self) -> bool:
        """Whether a batch norm takes the mean of the output off while the model trains."""
        return self.norm_after is not None and not self.norm_frozen

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.in_features

    @property
    def taps(self) -> int:
        """Number of kernel positions."""
        return math.prod(self.kernel)

    @property
    def trained_taps(self) -> int:
        """Numbers that are trained for each direction and output."""
        return self.taps if self.kernel_rank is None else self.kernel_rank

    @property
    def width_after(self) -> int:
        """Inputs that every output is computed from, afterwards: directions of the basis, where there is one."""
        if self.rank is not None:
            return self.rank
        return self.in_features // self.groups if self.depthwise else self.kept_inputs // self.groups

    @property
    def _weight_before(self) -> int:
        return 0 if self.tied else self.out_features * (self.in_features // self.groups) * self.taps

    @property
    def size_before(self) -> int:
        return self._weight_before + self.bias * self.out_features

    @property
    def trainable_before(self) -> int:
        """Weights and biases that are trained now."""
        return (not self.frozen) * self._weight_before + self.trains_bias * self.bias * self.out_features

    @property
    def trainable_after(self) -> int:
        """Weights and biases that are trained afterwards (the basis too, where it is trained)."""
        return (not self.frozen) * (self.size_after - self._biases_after) + self.trains_bias * self._biases_after

    @property
    def trains_bias(self) -> bool:
        """Whether its bias takes gradients, if it has one, and the bias of what it becomes."""
        return not (self.frozen if self.bias_frozen is None else self.bias_frozen)

    @property
    def size_after(self) -> int:
        """The same where they are trained or could be."""
        core = self.trained_outputs * self.width_after * self.trained_taps
        if not self.transformed:
            return (not self.tied) * core + self._biases_after
        return core + self._biases_after + self.trained_basis_size

    @property
    def _biases_after(self) -> int:
        return self.kept_outputs if self.bias_after else 0

    @property
    def bias_after(self) -> bool:
        """Whether it has a bias afterwards: a transformed layer has one that makes up for what it loses of the mean."""
        loses_it = self.rank is not None or (self.output_rank is not None and not self.keep_dropped)
        return self.bias or (loses_it and self.centred)

    @property
    def basis_size(self) -> int:
        """Entries of the bases and the mean, which are stored beside the weights."""
        return self.input_basis_size + self.kept_outputs * (self.output_rank or 0) + self._kernel_basis_size

    @property
    def _kernel_basis_size(self) -> int:
        if self.rank is None or self.kernel_rank is None:
            return 0
        return self.groups * self.rank * (self.kernel_rank + 1) * self.taps  # and where each direction has one

    @property
    def input_basis_size(self) -> int:
        return 0 if self.rank is None else self.kept_inputs * (self.rank + 1)

    @property
    def trained_basis_size(self) -> int:
        """What of it is trained: a mean that is not taken off stays zero."""
        trained = self.train_basis and self.rank is not None
        return trained * (self.input_basis_size - (not self.centred) * self.kept_inputs)

    @property
    def trained_outputs(self) -> int:
        """Outputs that the trained weight computes: fewer than the layer's where an output basis expands them."""
        return self.kept_outputs if self.output_rank is None else self.groups * self.output_rank

    @property
    def frozen_size(self) -> int:
        """Entries of the part of the weight outside the basis, where it stays, frozen."""
        if not self.transformed or not self.keep_dropped:
            return 0
        return self.kept_outputs * (self.kept_inputs // self.groups) * self.taps

    @property
    def stored_after(self) -> int:
        """Weights and biases, the bases, and the frozen part of the weight where it stays."""
        return self.size_after + self.basis_size - self.trained_basis_size + self.frozen_size

    @property
    def flops_before(self) -> int | None:
        """Floating-point operations of one forward pass, per sample."""
        if self.out_positions is None:
            return None
        return round(2 * self.out_positions * self.out_features * (self.in_features // self.groups) * self.taps)

    @property
    def flops_after(self) -> int | None:
        """The same after the change, the projection included, and the frozen part of the weight where it stays."""
        if self.in_positions is None or self.out_positions is None:
            return None
        projection = 0 if self.rank is None else self.in_positions * self.kept_inputs * self.rank
        expansion = 0 if self.output_rank is None else self.out_positions * self.kept_outputs * self.output_rank
        core = self.out_positions * self.trained_outputs * self.width_after * self.taps
        return round(2 * (core + projection + expansion + self.out_positions * self.frozen_size))

    @property
    def is_larger(self) -> bool:
        """Whether it would store no less than now, a frozen part that was asked for beside it not counted."""
        return self.stored_after - self.frozen_size >= self.size_before

    @property
    def is_slower(self) -> bool:
        """Whether it would take more operations than now, counted likewise; by its stride if positions are unknown."""
        if self.flops_after is None or self.flops_before is None or self.out_positions is None:
            return replace(self, in_positions=self.stride, out_positions=1).is_slower
        return self.flops_after - 2 * self.out_positions * self.frozen_size > self.flops_before

    @property
    def transformed(self) -> bool:
        """Whether it gets a basis, on one side or the other."""
        return self.rank is not None or self.output_rank is not None

    @property
    def changed(self) -> bool:
        return self.transformed or self.kept_inputs != self.in_features or self.kept_outputs != self.out_features
