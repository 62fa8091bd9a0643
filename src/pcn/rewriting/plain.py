"""From principal component layers to stock layers that compute the same function."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pcn.errors import ConfigError, PlanError
from pcn.fusion import unfuse_
from pcn.layers import CHANNELS_LAST, layout_of, unwrap
from pcn.maths.transform import dense_form, factored_form
from pcn.nn import PCModule, check_own_tensors, hand_on_, inherit_
from pcn.nn.build import uninitialised
from pcn.plans.plan import set_plan_
from pcn.running.copying import copied
from pcn.running.refusals import check_whole

PlainForm = Literal["factored", "dense"]


def to_plain(model: nn.Module, form: PlainForm = "factored") -> nn.Module:
    """Return a copy of the model in which stock layers stand for the principal component layers.

    ``factored`` keeps the small size, as two layers in a row; ``dense`` gives one layer of the original size.

    >>> from pcn.nn import PCLinear
    >>> to_plain(nn.Sequential(PCLinear(64, 10, rank=8)), form="dense")
    Sequential(
      (0): Linear(in_features=64, out_features=10, bias=True)
    )
    """
    if form not in ("factored", "dense"):
        raise ConfigError(f"form={form!r}: choose 'factored' or 'dense'")
    check_whole(model)
    model = copied(unwrap(model))
    unfuse_(model)  # what was fused speaks of layers that go
    made: dict[int, nn.Module] = {}  # a layer under two names stays one layer

    def plain(module: nn.Module, name: str) -> nn.Module:
        if not isinstance(module, PCModule):
            return module
        if id(module) not in made:
            if not parametrize.is_parametrized(module):  # whose values are taken as they are
                check_own_tensors(name, module)
            made[id(module)] = dense_layer(module) if form == "dense" else factored_layer(module, name)
            hand_on_(made[id(module)], module)
        return made[id(module)]

    set_plan_(model, None)  # it speaks of layers that the copy no longer has
    for prefix, parent in list(model.named_modules()):
        for name, child in parent._modules.items():
            if child is not None:
                parent._modules[name] = plain(child, repr(f"{prefix}.{name}" if prefix else name))
    return plain(model, "the model")


def dense_layer(layer: PCModule) -> nn.Module:
    """Return the one stock layer that computes the same function as a principal component layer."""
    tensors = layer.weight, layer.bias, layer.mean, layer.basis
    weight, bias = dense_form(*tensors, layer.groups, layer.offset_weight, layer.output_basis, layer.tap_patterns)
    new: nn.Module = _stock(layer, weight, bias)
    new.weight.requires_grad_(layer.weight.requires_grad)
    if layer.bias is not None:
        new.bias.requires_grad_(layer.bias.requires_grad)
    inherit_(new, layer)
    return new


def factored_layer(layer: PCModule, name: str = "the layer") -> Factored:
    """Return a projection and the layer after it, as stock layers (and an expansion, with an output basis)."""
    if layer.offset_weight is not None:
        raise PlanError(f"{name} keeps its dropped part as an offset, which has no factored form; use form='dense'")
    tensors = layer.weight, layer.bias, layer.mean, layer.basis
    factors = factored_form(*tensors, layer.groups, layer.output_basis, layer.tap_patterns)
    parts = {} if factors.projection is None else {"project": _pointwise(layer, factors.projection, None)}
    if factors.expansion is None:
        parts["core"] = _stock(layer, factors.weight, factors.bias)
    else:
        parts["core"] = _stock(layer, factors.weight, None)
        parts["expand"] = _pointwise(layer, factors.expansion, factors.bias)
    new = Factored(OrderedDict(parts)).requires_grad_(False)
    new[0].weight.requires_grad_(isinstance(layer.basis, nn.Parameter) and layer.basis.requires_grad)
    new.weight.requires_grad_(layer.weight.requires_grad)
    if layer.bias is not None:
        new.bias.requires_grad_(layer.bias.requires_grad)
    inherit_(new, layer)
    return new


def _from(part: int | str, name: str) -> Any:
    def found(self: nn.Sequential) -> Any:
        return getattr(self[part] if isinstance(part, int) else self.get_submodule(part), name)

    return property(found, doc=f"The chain's ``{name}``, as a stock layer has it.")


class Factored(nn.Sequential):
    """A chain of stock layers in the place of one, which still answers to that layer's attributes."""

    # What TorchScript would compile, and cannot.
    __jit_unused_properties__: ClassVar[list[str]] = [
        "weight", "bias", "in_features", "out_features", "in_channels", "out_channels", "kernel_size", "stride",
        "padding", "dilation", "groups", "padding_mode",
    ]  # fmt: skip
    weight, bias = _from("core", "weight"), _from(-1, "bias")
    in_features, out_features = _from(0, "in_features"), _from(-1, "out_features")
    in_channels, out_channels = _from(0, "in_channels"), _from(-1, "out_channels")
    kernel_size, stride, padding = _from("core", "kernel_size"), _from("core", "stride"), _from("core", "padding")
    dilation, groups, padding_mode = _from("core", "dilation"), _from("core", "groups"), _from("core", "padding_mode")


def _stock(layer: PCModule, weight: Tensor, bias: Tensor | None) -> Any:
    """Make a stock layer that moves over its input as this one does."""
    names = ("stride", "padding", "dilation", "padding_mode")
    return _pointwise(layer, weight, bias, **{name: getattr(layer, name) for name in names if weight.dim() > 2})


def _pointwise(layer: PCModule, weight: Tensor, bias: Tensor | None, **movement: Any) -> Any:
    """Make a stock layer of the same kind; without ``movement``, it goes pixel by pixel."""
    if weight.dim() > 2:
        movement |= {"kernel_size": tuple(weight.shape[2:]), "groups": layer.groups}
    widths = weight.shape[1] * layer.groups, weight.shape[0]
    has_bias = bias is not None
    new: Any = uninitialised(layer.stock, *widths, bias=has_bias, device=weight.device, dtype=weight.dtype, **movement)
    if layer.channels_last or layout_of(layer.weight) != torch.contiguous_format:
        new.to(memory_format=CHANNELS_LAST.get(weight.dim(), torch.contiguous_format))
    with torch.no_grad():
        new.weight.copy_(weight)
        if bias is not None:
            new.bias.copy_(bias)
    return new
