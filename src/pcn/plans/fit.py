"""Whether a plan fits a model, and statistics do."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from pcn.errors import ConfigError, PlanError, suggest
from pcn.layers import canonical_weight, groups_of, in_width, layer_type, transformable_layers
from pcn.memory import tensors_by_name
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan, check_untransformed
from pcn.statistics import Statistics


def check_plan_fits(plan: Plan, model: nn.Module) -> None:
    """Raise unless every layer and tensor of the plan is in the model with the shape that the plan was made for."""
    check_untransformed(model)
    modules = dict(model.named_modules())
    left_alone = {name: reason for name, _, reason in transformable_layers(model) if reason is not None}
    for layer in plan.layers.values():
        if layer.name not in modules:
            compiled = "_orig_mod" in layer.name.split(".")
            hint = "; torch.compile(part) renames a part: part.compile() does not" if compiled else ""
            raise PlanError(
                f"the plan has a layer {layer.name!r}, the model none{hint or suggest(layer.name, modules)}"
            )
        _check_layer(layer, modules[layer.name])
        if layer.transformed and layer.name in left_alone:
            raise PlanError(f"{layer.name!r} has a rank in the plan but must be left alone: {left_alone[layer.name]}")
    tensors = tensors_by_name(model)
    for name, dims in plan.slices.items():
        if name not in tensors:
            raise PlanError(f"the plan cuts {name!r}, which the model does not have{suggest(name, tensors)}")
        shape = tuple(tensors[name].shape)
        if any(dim >= len(shape) or cut.size != shape[dim] for dim, cut in dims.items()):
            raise PlanError(f"the plan's cut of {name!r} does not fit its shape {shape}")


def without_strangers(plan: Plan, model: nn.Module) -> Plan:
    """A plan without layers that it left alone and that the transformed model has no longer, or with other sizes.

    Raise where what it has cut is of other sizes: nobody could find that again.
    """
    tensors, modules = tensors_by_name(model), dict(model.named_modules())
    in_bases = {layer.name for layer in plan.transformed}
    for name, dims in plan.slices.items():
        if name.rpartition(".")[0] in in_bases or name not in tensors:
            continue
        if any(tensors[name].shape[dim] != len(cut.kept) for dim, cut in dims.items()):
            raise PlanError(
                f"{name!r} has the shape {tuple(tensors[name].shape)}, which is not what is left by the model's plan; "
                "save a model as its plan left it"
            )
    gone = [name for name, layer in plan.layers.items() if not layer.changed and not _is_there(layer, modules)]
    return replace(plan, layers={name: layer for name, layer in plan.layers.items() if name not in gone})


def _is_there(layer: LayerPlan, modules: dict[str, nn.Module]) -> bool:
    if layer.name not in modules:
        return False
    try:
        _check_layer(layer, modules[layer.name])
    except PlanError:
        return False
    return True


def _check_layer(layer: LayerPlan, module: nn.Module) -> None:
    kind = layer_type(module)
    if kind is None or kind.kind != layer.kind:
        raise PlanError(f"{layer.name!r} is a {layer.kind} layer in the plan, but {type(module).__name__} in the model")
    weight, groups = canonical_weight(module), groups_of(module)
    sizes = (weight.shape[1] * groups, weight.shape[0], groups, tuple(weight.shape[2:]), module.bias is not None)
    planned = (layer.in_features, layer.out_features, layer.groups, layer.kernel, layer.bias)
    if sizes[:-1] == planned[:-1] and layer.bias and module.bias is None:
        raise PlanError(
            f"{layer.name!r} has no bias, the plan was made for a layer with one; where it has gained that in "
            "pcn.fold_, build it with bias=True"
        )
    if sizes != planned:
        raise PlanError(
            f"{layer.name!r} has (inputs, outputs, groups, kernel, bias) {sizes}, the plan was made for {planned}"
        )


def check_statistics(stats: Statistics, model: nn.Module) -> None:
    """Raise unless layers that were measured are in the model, and those that are read as many inputs."""
    if not isinstance(stats, Statistics):
        raise ConfigError(f"stats is of type {type(stats).__name__}: give what pcn.analyze(model, batches) returns")
    found = {name: (module, reason) for name, module, reason in transformable_layers(model)}
    if stats.layers and not stats.layers.keys() & found.keys():
        name = next(iter(stats.layers))
        raise PlanError(
            f"the statistics are of a model with a layer {name!r} and others that this one does not have; analyze this "
            f"model itself{suggest(name, found)}"
        )
    for name, key in stats.layers.items():
        if name not in found:  # a head that was taken off, say
            continue
        module, reason = found[name]
        groups, inputs = stats.moments[key].groups, stats.moments[key].width * stats.moments[key].groups
        if reason is None and (groups, inputs) != (groups_of(module), in_width(module)):
            raise PlanError(
                f"the statistics of {name!r} are of {inputs} inputs in {groups} groups, but the layer has "
                f"{in_width(module)} in {groups_of(module)}; analyze this model itself"
            )
