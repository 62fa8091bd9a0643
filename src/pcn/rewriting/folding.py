"""What folding will change in a model: plain layers and tensors of the old sizes, made while it stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pcn.errors import PlanError
from pcn.layers import LAYER_TYPES, layout_of
from pcn.memory import tensors_by_name
from pcn.nn import PCModule, check_own_tensors, inherit_
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan
from pcn.rewriting.edit import Edit
from pcn.rewriting.plain import dense_layer
from pcn.rewriting.replaced import Carry, Replaced, carry_unprojected


def folding(plan: Plan, model: nn.Module, *, keep_biases: bool = False) -> tuple[Edit, list[str]]:
    """Make the plain layers of a plan's transformed ones; returns too which of them keep a bias that they gained."""
    edit, kept_bias = _restoring(plan, model), []
    for layer in plan.transformed:
        old = _held(model, layer)
        check_own_tensors(repr(layer.name), old)
        dense = _widen(plan, layer, dense_layer(old))
        if not layer.bias and dense.bias is not None:
            norm = None if keep_biases or old._forward_hooks else _norm_after(plan, layer, model)
            if norm is None:
                kept_bias.append(layer.name)
            else:
                _absorb_bias(norm, dense, edit.cut)
        new = _original_class(layer, old, dense)
        edit.swaps.append((old, new))
        _note_parameters_(edit, plan, layer, old, new)
    return edit, kept_bias


def _note_parameters_(edit: Edit, plan: Plan, layer: LayerPlan, old: PCModule, new: nn.Module) -> None:
    """Say which parameters take over from a transformed layer's, and how their history goes along."""
    assert isinstance(new.weight, nn.Parameter)
    moving = old.train_basis  # gradients were gathered in coordinates that have changed since
    carry = None if moving else carry_unprojected(old, lambda value: _placed(plan, layer, value))
    edit.replaced.append(Replaced(old.weight, new.weight, carry, old.bias))
    if isinstance(new.bias, nn.Parameter) and old.bias is not None:
        edit.replaced.append(Replaced(old.bias, new.bias, lambda entry, value, _: _placed_bias(plan, layer, value)))
    elif old.bias is not None:
        edit.gone.append(old.bias)
    edit.gone += [tensor for tensor in (old.basis, old.mean) if isinstance(tensor, nn.Parameter)]


def _held(model: nn.Module, layer: LayerPlan) -> PCModule:
    try:
        module = model.get_submodule(layer.name)
    except AttributeError:
        module = None
    if not isinstance(module, PCModule):
        raise PlanError(f"{layer.name!r} is no longer a principal component layer, so the model's plan no longer fits")
    return module


def _norm_after(plan: Plan, layer: LayerPlan, model: nn.Module) -> _BatchNorm | None:
    """The batch norm that can take over a layer's bias: one that normalises this layer's output and nothing else.

    Nor must there be another that may read it, as where a domain has norms of its own.
    """
    name = layer.norm_after
    if name is None or layer.norm_unsure or sum(other.norm_after == name for other in plan.layers.values()) > 1:
        return None
    norm = dict(model.named_modules()).get(name)
    return norm if isinstance(norm, _BatchNorm) else None


def _restoring(plan: Plan, model: nn.Module) -> Edit:
    """Give every cut tensor outside the transformed layers its old size back."""
    edit = Edit()
    transformed = {layer.name for layer in plan.transformed}
    held = tensors_by_name(model)
    for name in plan.slices:
        if name.rpartition(".")[0] not in transformed:
            if name not in held:
                raise PlanError(f"the model no longer has {name!r}, which its plan has cut")
            old = held[name]
            new = _spread(old.detach(), plan, name, fill=1.0 if name.endswith("running_var") else 0.0)
            new = new.contiguous(memory_format=layout_of(old))
            if isinstance(old, nn.Parameter):
                new = nn.Parameter(new, old.requires_grad)
                edit.replaced.append(Replaced(old, new, _carry_spread(plan, name)))
            edit.cut[id(old)] = old, new
    return edit


def _carry_spread(plan: Plan, name: str) -> Carry:
    """Channels that come back have no gradient, as nobody reads them."""

    def carry(entry: str, value: Tensor, bias_value: Tensor | None) -> Tensor:
        return _spread(value, plan, name)

    return carry


def _spread(tensor: Tensor, plan: Plan, name: str, fill: float = 0.0) -> Tensor:
    """Write the kept channels to where they were; what was sparse is dense then."""
    tensor = tensor.to_dense() if tensor.is_sparse else tensor
    for dim, cut in plan.slices.get(name, {}).items():
        shape = [cut.size if d == dim else size for d, size in enumerate(tensor.shape)]
        index = torch.tensor(cut.kept, device=tensor.device)
        tensor = tensor.new_full(shape, fill).index_copy_(dim, index, tensor)
    return tensor


def _placed(plan: Plan, layer: LayerPlan, weight: Tensor) -> Tensor:
    """A folded weight with all its inputs and outputs, in the original's layout, which is the plan's."""
    transposed = LAYER_TYPES[layer.kind].out_dim == 1
    return _spread(weight.transpose(0, 1) if transposed else weight, plan, f"{layer.name}.weight")


def _placed_bias(plan: Plan, layer: LayerPlan, bias: Tensor) -> Tensor:
    rows = plan.kept(f"{layer.name}.weight", LAYER_TYPES[layer.kind].out_dim)
    if rows is None:
        return bias
    return bias.new_zeros(layer.out_features).index_copy_(0, torch.tensor(rows, device=bias.device), bias)


def _widen(plan: Plan, layer: LayerPlan, dense: nn.Module) -> nn.Module:
    """Give a folded layer its old numbers of inputs and outputs."""
    assert isinstance(dense.weight, Tensor)
    layout = layout_of(dense.weight)
    weight = _placed(plan, layer, dense.weight.detach())
    weight = weight.transpose(0, 1) if LAYER_TYPES[layer.kind].out_dim == 1 else weight
    dense.weight = nn.Parameter(weight.contiguous(memory_format=layout), dense.weight.requires_grad)
    if isinstance(dense.bias, Tensor):
        dense.bias = nn.Parameter(_placed_bias(plan, layer, dense.bias.detach()), dense.bias.requires_grad)
    return dense


def _absorb_bias(norm: _BatchNorm, dense: nn.Module, tensors: dict[int, tuple[Tensor, Tensor]]) -> None:
    """Batch norm subtracts the mean: a bias before it is the same as a smaller running mean and no bias."""
    held = norm.running_mean
    assert isinstance(dense.bias, Tensor)
    if held is not None:  # without running statistics the batch's own mean takes any bias away
        current = tensors[id(held)][1] if id(held) in tensors else held
        tensors[id(held)] = (held, current - dense.bias.to(current))
    dense.register_parameter("bias", None)


def _original_class(layer: LayerPlan, old: PCModule, dense: nn.Module) -> nn.Module:
    if old.stood_for is not None:
        with suppress(TypeError):  # of classes with __slots__, which stay the stock ones
            dense.__class__ = old.stood_for  # which computes as the stock layer does
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
