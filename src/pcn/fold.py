"""Back to the architecture that the user had: bases multiplied out, dropped channels back where nobody reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pcn.distributed.refusals import check_changeable
from pcn.edit import Edit
from pcn.errors import PlanError
from pcn.layers import LAYER_TYPES, unwrap
from pcn.nn import PCModule, inherit_
from pcn.plain import dense_layer
from pcn.plan import LayerPlan, Plan, get_plan
from pcn.surgery import commit_


@torch.no_grad()
def fold_(model: nn.Module) -> list[str]:
    """Turn a transformed model back, in place, into the class, shapes and state-dict keys that it was built with.

    The function at inference stays the same. Dropped channels come back as zeros that nobody reads. A bias that a layer
    gained moves into the batch norm that follows; the names of layers that have to keep theirs are returned.
    """
    check_changeable(model)
    base = unwrap(model)
    plan = get_plan(base)
    if plan is None:
        raise PlanError("this model carries no plan: only a model changed by a plan, or loaded with one, can be folded")
    edit = Edit(cut=_restored(plan, base))
    kept_bias: list[str] = []
    for layer in plan.transformed:
        old = _held(base, layer)
        dense = _widen(plan, layer, dense_layer(old))
        if not layer.bias:
            norm = _norm_after(plan, layer, base)
            if norm is None:
                kept_bias.append(layer.name)
            else:
                _absorb_bias(norm, dense, edit.cut)
        edit.swaps.append((old, _original_class(layer, dense)))
    commit_(base, edit, None)
    for name, module in base.named_modules():
        if name in plan.layers:
            _set_sizes_(module, plan.layers[name])
    return kept_bias


def _held(model: nn.Module, layer: LayerPlan) -> PCModule:
    try:
        module = model.get_submodule(layer.name)
    except AttributeError:
        module = None
    if not isinstance(module, PCModule):
        raise PlanError(f"{layer.name!r} is no longer a principal component layer, so the model's plan no longer fits")
    return module


def _norm_after(plan: Plan, layer: LayerPlan, model: nn.Module) -> _BatchNorm | None:
    """The batch norm that can take over a layer's bias: one that normalises this layer's output and nothing else."""
    name = layer.norm_after
    if name is None or sum(other.norm_after == name for other in plan.layers.values()) > 1:
        return None
    norm = dict(model.named_modules()).get(name)
    return norm if isinstance(norm, _BatchNorm) else None


def _restored(plan: Plan, model: nn.Module) -> dict[int, tuple[Tensor, Tensor]]:
    """Give every cut tensor outside the transformed layers its old size back."""
    transformed = {layer.name for layer in plan.transformed}
    held = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    restored: dict[int, tuple[Tensor, Tensor]] = {}
    for name in plan.slices:
        if name.rpartition(".")[0] not in transformed:
            if name not in held:
                raise PlanError(f"the model no longer has {name!r}, which its plan has cut")
            old = held[name]
            new = _spread(old.detach(), plan, name, fill=1.0 if name.endswith("running_var") else 0.0)
            wrapped = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
            restored[id(old)] = (old, wrapped)
    return restored


def _spread(tensor: Tensor, plan: Plan, name: str, fill: float = 0.0) -> Tensor:
    """Write the kept channels to where they were."""
    for dim, cut in plan.slices.get(name, {}).items():
        shape = [cut.size if d == dim else size for d, size in enumerate(tensor.shape)]
        index = torch.tensor(cut.kept, device=tensor.device)
        tensor = tensor.new_full(shape, fill).index_copy_(dim, index, tensor)
    return tensor


def _widen(plan: Plan, layer: LayerPlan, dense: nn.Module) -> nn.Module:
    """Give a folded layer its old numbers of inputs and outputs."""
    kind = LAYER_TYPES[layer.kind]
    assert isinstance(dense.weight, Tensor)
    weight = dense.weight.detach()
    turned = weight.transpose(0, 1) if kind.out_dim == 1 else weight  # the plan speaks of the original's layout
    turned = _spread(turned, plan, f"{layer.name}.weight")
    weight = turned.transpose(0, 1) if kind.out_dim == 1 else turned
    dense.weight = nn.Parameter(weight.contiguous(), dense.weight.requires_grad)
    rows = plan.kept(f"{layer.name}.weight", kind.out_dim)
    if rows is not None and isinstance(dense.bias, Tensor):
        bias = dense.bias.new_zeros(layer.out_features)
        bias[list(rows)] = dense.bias
        dense.bias = nn.Parameter(bias, dense.bias.requires_grad)
    return dense


def _set_sizes_(module: Any, layer: LayerPlan) -> None:
    """Have a stock layer say the sizes that it had; those of one channel left do not tell whether it was depthwise."""
    if LAYER_TYPES[layer.kind].spatial:
        module.in_channels, module.out_channels, module.groups = layer.in_features, layer.out_features, layer.groups
    elif layer.kind == "linear":
        module.in_features, module.out_features = layer.in_features, layer.out_features


def _absorb_bias(norm: _BatchNorm, dense: nn.Module, tensors: dict[int, tuple[Tensor, Tensor]]) -> None:
    """Batch norm subtracts the mean: a bias before it is the same as a smaller running mean and no bias."""
    held = norm.running_mean
    assert isinstance(dense.bias, Tensor)
    if held is not None:  # without running statistics the batch's own mean takes any bias away
        current = tensors[id(held)][1] if id(held) in tensors else held
        tensors[id(held)] = (held, current - dense.bias.to(current))
    dense.register_parameter("bias", None)


def _original_class(layer: LayerPlan, dense: nn.Module) -> nn.Module:
    if layer.kind != "transposed_linear":
        return dense
    from transformers.pytorch_utils import Conv1D

    with torch.device("meta"):
        make: Callable[[int, int], nn.Module] = Conv1D
        made = make(layer.out_features, layer.in_features)
    assert isinstance(dense.weight, Tensor)
    made.weight = nn.Parameter(dense.weight.t().contiguous(), dense.weight.requires_grad)
    made.bias = dense.bias
    inherit_(made, dense)
    return made
