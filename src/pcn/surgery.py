"""The only code that changes a model: layers are swapped and tensors cut to a plan, all of them or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pcn.errors import PlanError, suggest
from pcn.graph.trace import capture
from pcn.layers import LAYER_TYPES, canonical_weight, groups_of, in_width, layer_type, out_width, unwrap
from pcn.nn import PCModule, empty_like
from pcn.optimizer import Replaced, carry_cut, carry_projected, check_optimizer, follow_
from pcn.plan import LayerPlan, Plan, get_plan
from pcn.skeleton import sync_sizes_
from pcn.statistics import Statistics
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

    With ``check`` the model is traced once more afterwards, and everything is put back if it no longer runs.
    """
    base = unwrap(model)
    copies = [base] if ema is None else [base, averaged(ema)]
    if optimizer is not None:
        check_optimizer(optimizer, strict=strict)
    edits = [_edit(plan, module, stats) for module in copies]
    undo = [commit_(module, edit, plan) for module, edit in zip(copies, edits, strict=True)]
    try:
        if check and stats.example is not None:
            capture(base, stats.example)
        if optimizer is not None:
            follow_(optimizer, edits[0].replaced)
    except Exception as error:
        for step in reversed(undo):
            step()
        raise PlanError(f"the transformed model does not run, so the model was put back as it was: {error}") from error


def averaged(ema: nn.Module) -> nn.Module:
    """The model inside an averaging wrapper (torch's AveragedModel and timm's both call it ``module``)."""
    inner = getattr(ema, "module", None)
    return unwrap(inner if isinstance(inner, nn.Module) else ema)


def reshape_(plan: Plan, model: nn.Module) -> None:
    """Give the model the plan's architecture; transformed layers start afresh with a random basis."""
    base = unwrap(model)
    check_fits(plan, base)
    edit = Edit(cut=_cut_tensors(plan, base))
    for layer in plan.transformed:
        old = base.get_submodule(layer.name)
        new = _empty(layer, old)
        if new.weight.device.type != "meta":
            new.reset_parameters()
        edit.swaps.append((old, new))
    commit_(base, edit, plan)


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
    for layer in plan.layers.values():
        module = modules.get(layer.name)
        kind = None if module is None else layer_type(module)
        if module is None or kind is None or kind.kind != layer.kind:
            found = "no such layer" if module is None else type(module).__name__
            raise PlanError(
                f"the plan has a {layer.kind} layer {layer.name!r}, the model {found}{suggest(layer.name, modules)}"
            )
        weight = canonical_weight(module)
        sizes = (in_width(module), out_width(module), groups_of(module), tuple(weight.shape[2:]))
        planned = (layer.in_features, layer.out_features, layer.groups, layer.kernel)
        if sizes != planned:
            raise PlanError(
                f"{layer.name!r} has (inputs, outputs, groups, kernel) {sizes}, the plan was made for {planned}"
            )
    tensors = _tensors(model)
    for name, dims in plan.slices.items():
        if name not in tensors:
            raise PlanError(f"the plan cuts {name!r}, which the model does not have{suggest(name, tensors)}")
        shape = tuple(tensors[name].shape)
        if any(dim >= len(shape) or cut.size != shape[dim] for dim, cut in dims.items()):
            raise PlanError(f"the plan's cut of {name!r} does not fit its shape {shape}")


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
    mean, basis = stats.mean(layer.name), stats.basis(layer.name, layer.rank)
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
    replaced = {id(old): new for old, new in edit.swaps}
    undo: list[Callable[[], None]] = []
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and id(child) in replaced:
                parent._modules[name] = replaced[id(child)]
                undo.append(_restore(parent._modules, name, child))
    for module in list(model.modules()):
        sizes = dict(module.__dict__)
        touched = False
        for held in (module._parameters, module._buffers):
            for name, tensor in list(held.items()):
                if tensor is not None and id(tensor) in edit.cut:
                    held[name] = edit.cut[id(tensor)][1]  # type: ignore[assignment]
                    undo.append(_restore(held, name, tensor))
                    touched = True
        if touched:
            sync_sizes_(module)
            undo.append(_restore_sizes(module, sizes))
    before = model.__dict__.get("_pcn_plan")
    model.__dict__["_pcn_plan"] = plan
    undo.append(_restore(model.__dict__, "_pcn_plan", before))

    def undo_all() -> None:
        for step in reversed(undo):
            step()

    return undo_all


def _restore(held: dict, name: str, value: object) -> Callable[[], None]:  # type: ignore[type-arg]
    return lambda: held.__setitem__(name, value)


def _restore_sizes(module: nn.Module, before: dict[str, object]) -> Callable[[], None]:
    numbers = {key: value for key, value in before.items() if isinstance(value, int)}
    return lambda: module.__dict__.update(numbers)
