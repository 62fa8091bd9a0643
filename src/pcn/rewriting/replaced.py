"""Parameters that gave way to others: what belonged to them goes into the new coordinates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pcn.errors import PlanError
from pcn.maths.moments import (
    Padding,
    along_patterns,
    patterns_told_apart,
    project_first_moment,
    reads_inside,
    second_moment_by_variances,
    unproject_first_moment,
)
from pcn.maths.patterns import coordinates
from pcn.maths.products import project_outputs
from pcn.nn import PCModule
from pcn.nn.conv import PCConvNd
from pcn.nn.functional import project_constant
from pcn.rewriting.bases import Basis

GRADIENT = "grad"
FIRST_MOMENTS = ("momentum_buffer", "exp_avg")
SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq")

Gained = tuple[str, nn.Parameter]  # its name in the model, and the parameter
Carry = Callable[[str, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Replaced:
    """A parameter that gave way to another: ``carry`` maps its gradient and what an optimizer holds of it.

    ``carry`` is called with the name of the entry, its value and the old bias's value of the same entry, if any. Where
    it is None nothing goes along, and all that is kept counts as zero.
    ``gained`` are parameters that had no predecessor, each with its name, and train where this one does.
    """

    old: nn.Parameter
    new: nn.Parameter
    carry: Carry | None
    old_bias: nn.Parameter | None = None
    gained: tuple[Gained, ...] = ()

    def carried(self, entry: str, value: Tensor, bias_value: Tensor | None) -> Tensor:
        """The new parameter's value of an entry, in memory as it lies there itself, which fused optimizers rely on."""
        carried = None if self.carry is None else self.carry(entry, value, bias_value)
        if carried is not None and carried.is_sparse:  # of an embedding, say
            return carried
        laid_out = torch.zeros_like(self.new, dtype=value.dtype, device=value.device, requires_grad=False)
        return laid_out if carried is None else laid_out.copy_(carried)


def carry_cut(dims: dict[int, tuple[int, ...]]) -> Carry:
    """Everything held per entry loses the same entries as the parameter."""

    def carry(entry: str, value: Tensor, bias_value: Tensor | None) -> Tensor:
        for dim, kept in dims.items():
            value = value.index_select(dim, torch.tensor(kept, device=value.device))
        return value

    return carry


def carry_projected(
    layer: PCModule,
    known: Basis,
    *,
    rows: Tensor | None,
    kept: Tensor | None,
    transposed: bool,
    centred: bool,
    positions: float | None,
) -> Carry:
    """Gradients and their running means go along exactly, running means of squares by variances (an estimate).

    ``centred`` says that the gradients of an output sum up to zero over a batch; ``positions`` are those of an input.
    """
    outputs, groups = layer.output_basis, layer.groups

    def carry(entry: str, value: Tensor, bias_value: Tensor | None) -> Tensor:
        value = value.transpose(0, 1) if transposed else value
        if rows is not None:
            value = value.index_select(0, rows.to(value.device))
            bias_value = None if bias_value is None else bias_value.index_select(0, rows.to(value.device))
        squares = entry in SECOND_MOMENTS
        if layer.basis is not None and squares:
            value = _squares(layer, known, value, bias_value, kept=kept, centred=centred, positions=positions)
        elif layer.basis is not None and layer.mean is not None:
            value = project_first_moment(value, bias_value, layer.mean, layer.basis, kept, groups)
            value = value if (patterns := layer.tap_patterns) is None else coordinates(value, patterns, groups)
        if outputs is None:
            return value
        return project_outputs(value, outputs**2 if squares else outputs, groups)

    return carry


def _squares(
    layer: PCModule,
    known: Basis,
    value: Tensor,
    bias_value: Tensor | None,
    *,
    kept: Tensor | None,
    centred: bool,
    positions: float | None,
) -> Tensor:
    """Running means of squares in the coordinates in which a layer reads its input."""
    assert known.mean is not None
    assert known.variances is not None
    assert known.total is not None
    variances, patterns, spread = known.variances, layer.tap_patterns, known.pattern_variances
    if known.scale is not None:
        variances = variances * known.scale.to(variances).unsqueeze(1) ** 2
    given = value, bias_value, known.mean if known.within is None else known.within, variances, known.total
    padding, within = _padding(layer, positions), _within(layer, known, kept)
    varying, of_mean = second_moment_by_variances(*given, centred=centred, padding=padding, within=within)
    if patterns is None or spread is None:
        return varying if of_mean is None else varying + of_mean
    if within is None or of_mean is None:
        return along_patterns(varying, spread, patterns, layer.groups)
    parts = patterns_told_apart(spread, variances, within, patterns, layer.groups)
    each = zip((varying, of_mean), parts, strict=True)
    varying, of_mean = (along_patterns(value, part, patterns, layer.groups) for value, part in each)
    return varying + of_mean


def _padding(layer: PCModule, positions: float | None) -> Padding | None:
    """What a convolution reads beside its images, which are taken to be as wide as they are high where it fits them."""
    if not isinstance(layer, PCConvNd) or not layer.geometry.pads_with_zeros or positions is None or positions < 1:
        return None
    spatial = len(layer.kernel_size)
    stride, pads, dilation, groups, _ = layer.geometry
    side = max(1, round(positions ** (1 / spatial)))
    reach = zip(layer.kernel_size, dilation, pads, strict=True)
    needs = (1 + apart * (taps - 1) - sum(beside) for taps, apart, beside in reach)
    inside = reads_inside([max(side, least) for least in needs], layer.kernel_size, stride, pads, dilation)
    if not inside.any():  # as of a stride that is larger than the images
        return None
    assert layer.mean is not None
    assert layer.basis is not None
    return Padding(project_constant(layer.mean, layer.basis, groups).reshape(groups, -1), inside)


def _within(layer: PCModule, known: Basis, kept: Tensor | None) -> Tensor | None:
    """The mean along a layer's directions that it reads with its input; None where it takes the mean off."""
    if known.within is None or layer.basis is None:
        return None
    left = known.within if kept is None else known.within[kept.to(known.within.device)]
    return project_constant(left, layer.basis.to(left), layer.groups).reshape(layer.groups, -1)


def carry_unprojected(layer: PCModule, place: Callable[[Tensor], Tensor]) -> Carry:
    """Running means of gradients go back to the plain layer's weight; ``place`` gives them its shape."""
    tensors = layer.mean, layer.basis, layer.groups, layer.output_basis, layer.tap_patterns

    def carry(entry: str, value: Tensor, bias_value: Tensor | None) -> Tensor:
        return place(unproject_first_moment(value, bias_value, *tensors))

    return carry


def check_hooks(replaced: Iterable[Replaced]) -> None:
    """Raise where a hook on a gradient would be given one of another shape than that of its parameter.

    Plans leave such layers and channels as they are, but hooks may come later. Hooks on what keeps its shape go along,
    and so do those after accumulation, such as frameworks register: they are given the parameter itself.
    """
    for change in replaced:
        if change.old._backward_hooks and change.old.shape != change.new.shape:
            raise PlanError(
                f"a parameter of shape {tuple(change.old.shape)} has a hook on its gradient, and one of shape "
                f"{tuple(change.new.shape)} would take its place: remove the hook, and register one for the new "
                "parameter afterwards"
            )


@torch.inference_mode(False)  # what is made in inference mode could not be added to
@torch.no_grad()
def hand_over_(replaced: Iterable[Replaced], *, gradients: bool = True) -> None:
    """Give new parameters what hangs on the old ones: gradients gathered so far, tensor hooks and attributes.

    Gradients that cannot go along are left out: their parameter has none, as after ``zero_grad``.
    A bias that a layer gained has gathered nothing; its share of the gradient counts as 0, as it does for momentum.
    """
    for change in replaced:
        if gradients and change.old.grad is not None and change.carry is not None:
            bias_gradient = None if change.old_bias is None else change.old_bias.grad
            change.new.grad = change.carried(GRADIENT, change.old.grad, bias_gradient)
        change.new.__dict__.update(change.old.__dict__)
        for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            if getattr(change.old, hooks):
                setattr(change.new, hooks, getattr(change.old, hooks))  # the same dictionary: handles still remove
