"""The only code that changes a model: layers are swapped and tensors cut to a plan, all of them or none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pcn.errors import PlanError, suggest
from pcn.example import Example
from pcn.layers import LAYER_TYPES, canonical_weight, groups_of, layer_type, transformable_layers, unwrap
from pcn.nn import PCModule, empty_like
from pcn.optimizer import Replaced, carry_cut, carry_projected, check_optimizer, follow_
from pcn.plan import LayerPlan, Plan, get_plan, set_plan_
from pcn.skeleton import sync_sizes_
from pcn.statistics import Statistics
from pcn.statistics.untouched import untouched
from pcn.transform import dropped_part, reader_transform, select_inputs

Swap = tuple[nn.Module, nn.Module]  # the old layer and the new one


@dataclass
class Edit:
    """Everything that will change in one model, made beforehand so that nothing can fail halfway."""

    swaps: list[Swap] = field(default_factory=list)
    cut: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # id of the old tensor -> (old, new)
    replaced: list[Replaced] = field(default_factory=list)  # what an optimizer has to know


def apply_plan_(
    plan: Plan,
    model: nn.Module,
    stats: Statistics,
    *,
    optimizer: Optimizer | None = None,
    ema: nn.Module | None = None,
    strict: bool = False,
    check: bool = True,
) -> None:
    """Transform the model, its averaged copy and its optimizer: all or nothing.

    With ``check`` the model then runs on the statistics' example, and everything is put back if it fails.
    """
    base = unwrap(model)
    copies = [base] if ema is None else [base, averaged(ema)]
    if optimizer is not None:
        check_optimizer(optimizer, strict=strict)
    edits = [_edit(plan, module, stats) for module in copies]
    with ExitStack() as undo:
        for module, edit in zip(copies, edits, strict=True):
            undo.callback(commit_(module, edit, plan))
        if check and stats.example is not None:
            _check_runs(base, stats.example)
        if optimizer is not None:
            follow_(optimizer, edits[0].replaced)
        undo.pop_all()


def _check_runs(model: nn.Module, example: Example) -> None:
    try:
        with untouched(model, eval_mode=True):
            example.call(model)
    except Exception as error:
        raise PlanError(f"the transformed model does not run, so the model was put back as it was: {error}") from error


def averaged(ema: nn.Module) -> nn.Module:
    """The model inside an averaging wrapper (torch's AveragedModel and timm's both call it ``module``)."""
    inner = getattr(ema, "module", None)
    return unwrap(inner if isinstance(inner, nn.Module) else ema)


def reshape_(plan: Plan, model: nn.Module, *, empty: bool = False) -> Callable[[], None]:
    """Give the model the plan's architecture, with random weights in transformed layers; return how to undo it.

    With ``empty`` their tensors hold nothing yet.
    """
    base = unwrap(model)
    check_fits(plan, base)
    edit = Edit(cut=_cut_tensors(plan, base))
    for layer in plan.transformed:
        old = base.get_submodule(layer.name)
        new = _empty(layer, old)
        if not empty and not new.weight.is_meta:
            new.reset_parameters()
        edit.swaps.append((old, new))
    return commit_(base, edit, plan)


def _edit(plan: Plan, model: nn.Module, stats: Statistics) -> Edit:
    check_fits(plan, model)
    edit = Edit(cut=_cut_tensors(plan, model))
    for layer in plan.transformed:
        old = model.get_submodule(layer.name)
        new = _transformed(plan, layer, old, stats)
        edit.swaps.append((old, new))
        edit.replaced += _replacements(plan, layer, old, new)
    for name, dims in plan.slices.items():
        tensor = _tensors(model)[name]
        if id(tensor) in edit.cut and isinstance(tensor, nn.Parameter):
            cuts = {dim: cut.kept for dim, cut in dims.items()}
            edit.replaced.append(Replaced(tensor, edit.cut[id(tensor)][1], carry_cut(cuts)))  # type: ignore[arg-type]
    return edit


def _replacements(plan: Plan, layer: LayerPlan, old: nn.Module, new: PCModule) -> list[Replaced]:
    """Say which parameters take over from a transformed layer's own, and how their history goes along."""
    kind = LAYER_TYPES[layer.kind]
    rows = plan.kept(f"{layer.name}.weight", kind.out_dim)
    index = None if rows is None else torch.tensor(rows)
    kept = kept_inputs(plan, layer)
    carry = carry_projected(
        new.mean, new.basis, rows=index, kept=kept, groups=layer.groups, transposed=kind.out_dim == 1
    )
    bias = old.bias if isinstance(old.bias, nn.Parameter) else None
    gained = [("bias", new.bias)] if bias is None else []
    gained += [(name, getattr(new, name)) for name in ("basis", "mean") if layer.train_basis]
    assert isinstance(old.weight, nn.Parameter)
    changes = [Replaced(old.weight, new.weight, carry, bias, tuple(gained))]
    if bias is not None:
        changes.append(Replaced(bias, new.bias, carry_cut({} if rows is None else {0: rows})))
    return changes


def check_fits(plan: Plan, model: nn.Module) -> None:
    """Raise unless every layer and tensor of the plan is in the model with the shape that the plan was made for."""
    if get_plan(model) is not None:
        raise PlanError("this model has been transformed already; pcn.fold_(model) brings its plain layers back")
    modules = dict(model.named_modules())
    left_alone = {name: reason for name, _, reason in transformable_layers(model) if reason is not None}
    for layer in plan.layers.values():
        if layer.name not in modules:
            raise PlanError(f"the plan has a layer {layer.name!r}, the model none{suggest(layer.name, modules)}")
        _check_layer(layer, modules[layer.name])
        if layer.rank is not None and layer.name in left_alone:
            raise PlanError(f"{layer.name!r} has a rank in the plan but must be left alone: {left_alone[layer.name]}")
    tensors = _tensors(model)
    for name, dims in plan.slices.items():
        if name not in tensors:
            raise PlanError(f"the plan cuts {name!r}, which the model does not have{suggest(name, tensors)}")
        shape = tuple(tensors[name].shape)
        if any(dim >= len(shape) or cut.size != shape[dim] for dim, cut in dims.items()):
            raise PlanError(f"the plan's cut of {name!r} does not fit its shape {shape}")


def _check_layer(layer: LayerPlan, module: nn.Module) -> None:
    kind = layer_type(module)
    if kind is None or kind.kind != layer.kind:
        raise PlanError(f"{layer.name!r} is a {layer.kind} layer in the plan, but {type(module).__name__} in the model")
    weight, groups = canonical_weight(module), groups_of(module)
    sizes = (weight.shape[1] * groups, weight.shape[0], groups, tuple(weight.shape[2:]))
    planned = (layer.in_features, layer.out_features, layer.groups, layer.kernel)
    if sizes != planned:
        raise PlanError(
            f"{layer.name!r} has (inputs, outputs, groups, kernel) {sizes}, the plan was made for {planned}"
        )


def kept_inputs(plan: Plan, layer: LayerPlan) -> Tensor | None:
    """The inputs of a layer that are left, counted over all groups, or None for all."""
    kept = plan.kept(f"{layer.name}.weight", LAYER_TYPES[layer.kind].in_dim)
    if kept is None:
        return None
    width = layer.in_features // layer.groups
    return (torch.arange(layer.groups)[:, None] * width + torch.tensor(kept)).flatten()


def _transformed(plan: Plan, layer: LayerPlan, module: nn.Module, stats: Statistics) -> PCModule:
    """Make the principal component layer with its weights, from the plain one, which is not touched."""
    assert layer.rank is not None
    weight, bias = _kept_rows(plan, layer, module)
    kept = kept_inputs(plan, layer)
    block = None
    if kept is not None and layer.order == "kept_block":
        block = stats.block_basis(layer.name, kept, layer.rank)
    mean = stats.mean(layer.name)
    if len(mean) != layer.in_features:
        raise PlanError(
            f"the statistics of {layer.name!r} are of {len(mean)} inputs, the layer has {layer.in_features}: "
            "apply the plan with the statistics that it was made from"
        )
    basis = stats.basis(layer.name, layer.rank)
    projected = reader_transform(
        weight, bias, mean, basis, kept=kept, order=layer.order, groups=layer.groups, block_basis=block
    )
    if layer.keep_dropped:
        lost = dropped_part(select_inputs(weight, kept, layer.groups), projected.weight, projected.basis, layer.groups)
        projected = projected._replace(offset_weight=lost)
    new = _empty(layer, module)
    new.load_(projected)
    return new


def _kept_rows(plan: Plan, layer: LayerPlan, module: nn.Module) -> tuple[Tensor, Tensor | None]:
    weight = canonical_weight(module).detach()
    bias = module.bias.detach() if isinstance(module.bias, Tensor) else None
    rows = plan.kept(f"{layer.name}.weight", LAYER_TYPES[layer.kind].out_dim)
    if rows is None:
        return weight, bias
    index = torch.tensor(rows, device=weight.device)
    return weight.index_select(0, index), None if bias is None else bias.index_select(0, index)


def _empty(layer: LayerPlan, module: nn.Module) -> PCModule:
    assert layer.rank is not None
    return empty_like(
        module,
        layer.rank,
        inputs=layer.kept_inputs,
        outputs=layer.kept_outputs,
        train_basis=layer.train_basis,
        offset=layer.keep_dropped,
    )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers under all their names."""
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


def _cut_tensors(plan: Plan, model: nn.Module) -> dict[int, tuple[Tensor, Tensor]]:
    """Cut every tensor that loses channels and does not belong to a transformed layer: id -> (old, new)."""
    tensors = _tensors(model)
    transformed = {layer.name for layer in plan.transformed}
    replaced: dict[int, tuple[Tensor, Tensor]] = {}
    for name, dims in plan.slices.items():
        if name.rpartition(".")[0] not in transformed:
            old = tensors[name]
            new = old.detach()
            for dim, cut in dims.items():
                new = new.index_select(dim, torch.tensor(cut.kept, device=old.device))
            is_parameter = isinstance(old, nn.Parameter)
            replaced[id(old)] = (old, nn.Parameter(new, old.requires_grad) if is_parameter else new)
    return replaced


def commit_(model: nn.Module, edit: Edit, plan: Plan | None) -> Callable[[], None]:
    """Put new layers and tensors in, wherever the old ones are held; return how to undo it all."""
    with ExitStack() as undo:
        _swap_layers_(model, edit.swaps, undo)
        _swap_tensors_(model, edit.cut, undo)
        undo.callback(set_plan_, model, get_plan(model))
        set_plan_(model, plan)
        return undo.pop_all().close


def _swap_layers_(model: nn.Module, swaps: list[Swap], undo: ExitStack) -> None:
    replaced = {id(old): new for old, new in swaps}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and id(child) in replaced:
                undo.callback(parent._modules.__setitem__, name, child)
                parent._modules[name] = replaced[id(child)]


def _swap_tensors_(model: nn.Module, cut: dict[int, tuple[Tensor, Tensor]], undo: ExitStack) -> None:
    for module in list(model.modules()):
        sizes = {key: value for key, value in module.__dict__.items() if isinstance(value, int)}
        touched = False
        for held in (module._parameters, module._buffers):
            for name, tensor in list(held.items()):
                if tensor is not None and id(tensor) in cut:
                    undo.callback(held.__setitem__, name, tensor)  # type: ignore[arg-type]
                    held[name] = cut[id(tensor)][1]  # type: ignore[assignment]
                    touched = True
        if touched:
            undo.callback(module.__dict__.update, sizes)
            sync_sizes_(module)
