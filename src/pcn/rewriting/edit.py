"""What will change in a model: new layers and cut tensors, made beforehand while the model stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from pcn.layers import LAYER_TYPES, canonical_weight, layout_of
from pcn.maths.patterns import Patterns
from pcn.maths.products import select_inputs
from pcn.maths.transform import (
    Projected,
    dropped_part,
    reader_transform,
    scaled,
    with_output_basis,
    with_patterns,
    writer_transform,
)
from pcn.memory import tensors_by_name
from pcn.nn import PCModule, empty_like
from pcn.plans.fit import check_plan_fits
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan
from pcn.rewriting.bases import Bases, Basis, kept_inputs
from pcn.rewriting.replaced import Replaced, carry_cut, carry_projected

Swap = tuple[nn.Module, nn.Module]  # the old layer and the new one


@dataclass
class Edit:
    """Everything that will change in one model."""

    swaps: list[Swap] = field(default_factory=list)
    cut: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # id of the old tensor -> (old, new)
    replaced: list[Replaced] = field(default_factory=list)  # the parameters that give way
    gone: list[nn.Parameter] = field(default_factory=list)  # those that nothing takes the place of


def transforming(plan: Plan, model: nn.Module, bases: Bases) -> Edit:
    """Make the layers of a plan with their weights in the new coordinates."""
    return _edit(plan, model, lambda layer, old: _transformed(plan, layer, old, bases[layer.name]), bases)


def reshaping(plan: Plan, model: nn.Module, *, empty: bool = False) -> Edit:
    """Make the layers of a plan with random weights, or with ``empty`` ones that hold nothing yet."""

    def make(layer: LayerPlan, old: nn.Module) -> PCModule:
        new = _empty(layer, old)
        if not empty and not new.weight.is_meta:
            new.reset_parameters()
        return new

    return _edit(plan, model, make, {})


def _edit(plan: Plan, model: nn.Module, make: Callable[[LayerPlan, nn.Module], PCModule], bases: Bases) -> Edit:
    check_plan_fits(plan, model)
    edit = Edit(cut=_cut_tensors(plan, model))
    for layer in plan.transformed:
        old = model.get_submodule(layer.name)
        new = make(layer, old)
        edit.swaps.append((old, new))
        edit.replaced += _replacements(plan, layer, old, new, bases.get(layer.name))
    edit.replaced += _cut_parameters(plan, model, edit)
    return edit


def _cut_parameters(plan: Plan, model: nn.Module, edit: Edit) -> Iterator[Replaced]:
    tensors = tensors_by_name(model)
    for name, dims in plan.slices.items():
        old, new = edit.cut.get(id(tensors[name]), (None, None))
        if isinstance(old, nn.Parameter) and isinstance(new, nn.Parameter):
            yield Replaced(old, new, carry_cut({dim: cut.kept for dim, cut in dims.items()}))


def _replacements(plan: Plan, layer: LayerPlan, old: nn.Module, new: PCModule, basis: Basis | None) -> list[Replaced]:
    """Say which parameters take over from a transformed layer's own, and how their history goes along.

    Without a basis, the new layer's weights have nothing to do with the old one's, and neither has their history.
    """
    kind = LAYER_TYPES[layer.kind]
    rows = plan.kept(f"{layer.name}.weight", kind.out_dim)
    index = None if rows is None else torch.tensor(rows)
    kept = kept_inputs(plan, layer)
    carry = None
    if basis is not None:
        carry = carry_projected(
            new,
            basis,
            rows=index,
            kept=kept,
            transposed=kind.out_dim == 1,
            centred=layer.batch_normed,
            positions=layer.in_positions,
        )
    bias = old.bias if isinstance(old.bias, nn.Parameter) else None
    more = {"basis": new.basis, "mean": new.mean} | ({"bias": new.bias} if bias is None else {})
    trained = {name: each for name, each in more.items() if isinstance(each, nn.Parameter)}
    gained = tuple((f"{layer.name}.{name}", trained[name]) for name in ("bias", "basis", "mean") if name in trained)
    assert isinstance(old.weight, nn.Parameter)
    if bias is None:
        return [Replaced(old.weight, new.weight, carry, gained=gained)]
    assert new.bias is not None
    # The order of the new layer's own parameters, so that a saved state fits a model built anew.
    carry_bias = carry_cut({} if rows is None else {0: rows})
    return [Replaced(old.weight, new.weight, carry, bias), Replaced(bias, new.bias, carry_bias, gained=gained)]


def _transformed(plan: Plan, layer: LayerPlan, module: nn.Module, basis: Basis) -> PCModule:
    """Make the principal component layer with its weights, from the plain one, which is not touched."""
    weight, bias = _kept_rows(plan, layer, module)
    kept = kept_inputs(plan, layer)
    projected = rewritten(layer, basis, weight, bias, kept)
    if layer.keep_dropped:
        lost = dropped_part(select_inputs(weight, kept, layer.groups), projected, layer.groups)
        projected = projected._replace(offset_weight=lost)
    new = _empty(layer, module)
    new.load_(projected)
    return new


def rewritten(
    layer: LayerPlan, basis: Basis, weight: Tensor, bias: Tensor | None, kept: Tensor | None = None
) -> Projected:
    """A layer's weight and bias in the coordinates of its bases; of its inputs only ``kept`` are left."""
    if basis.directions is None:
        assert basis.outputs is not None
        lost = basis.mean if layer.centred and not layer.keep_dropped else None
        return writer_transform(weight, bias, lost, basis.outputs, layer.groups)
    projected = reader_transform(
        weight,
        bias,
        basis.mean,
        basis.directions,
        kept=kept,
        order=layer.order,
        groups=layer.groups,
        block_basis=basis.block,
        dual=basis.dual,
    )
    if basis.patterns is not None and basis.pattern_mask is not None and basis.pattern_dual is not None:
        patterns = Patterns(basis.patterns, basis.pattern_mask)
        projected = with_patterns(projected, patterns, basis.pattern_dual, layer.groups)
    if basis.outputs is not None:
        projected = with_output_basis(projected, basis.outputs, layer.groups)
    if bias is None and not layer.centred:
        projected = projected._replace(bias=None)
    return projected if basis.scale is None else scaled(projected, basis.scale)


def _kept_rows(plan: Plan, layer: LayerPlan, module: nn.Module) -> tuple[Tensor, Tensor | None]:
    weight = canonical_weight(module).detach()
    bias = module.bias.detach() if isinstance(module.bias, Tensor) else None
    rows = plan.kept(f"{layer.name}.weight", LAYER_TYPES[layer.kind].out_dim)
    if rows is None:
        return weight, bias
    index = torch.tensor(rows, device=weight.device)
    return weight.index_select(0, index), None if bias is None else bias.index_select(0, index)


def _empty(layer: LayerPlan, module: nn.Module) -> PCModule:
    return empty_like(
        module,
        layer.rank,
        inputs=layer.kept_inputs,
        outputs=layer.kept_outputs,
        train_basis=layer.train_basis,
        offset=layer.keep_dropped,
        output_rank=layer.output_rank,
        kernel_rank=layer.kernel_rank,
        bias=layer.bias_after,
        centred=layer.centred,
    )


def _cut_tensors(plan: Plan, model: nn.Module) -> dict[int, tuple[Tensor, Tensor]]:
    """Cut every tensor that loses channels and does not belong to a transformed layer: id -> (old, new)."""
    tensors = tensors_by_name(model)
    transformed = {layer.name for layer in plan.transformed}
    replaced: dict[int, tuple[Tensor, Tensor]] = {}
    for name, dims in plan.slices.items():
        if name.rpartition(".")[0] not in transformed:
            old = tensors[name]
            new = old.detach()
            for dim, cut in dims.items():
                new = new.index_select(dim, torch.tensor(cut.kept, device=old.device))
            new = new.contiguous(memory_format=layout_of(old))
            is_parameter = isinstance(old, nn.Parameter)
            replaced[id(old)] = (old, nn.Parameter(new, old.requires_grad) if is_parameter else new)
    return replaced
