"""Making a principal component layer in the image of a stock one."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pcn.errors import ConfigError
from pcn.layers import canonical_weight, groups_of, in_width, layer_type, layout_of, out_width
from pcn.maths.transform import dropped_part, reader_transform
from pcn.nn.base import PCModule
from pcn.nn.conv import PCConv1d, PCConv2d, PCConv3d
from pcn.nn.linear import PCLinear

LAYERS: dict[str, type[PCModule]] = {
    "linear": PCLinear,
    "transposed_linear": PCLinear,
    "conv1d": PCConv1d,
    "conv2d": PCConv2d,
    "conv3d": PCConv3d,
}
Module = TypeVar("Module", bound=nn.Module)
MOVEMENT = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")

HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)

# What layers say of their own shapes and classes, which are not those of what takes their place.
OF_ITS_CLASS = (
    "centred",
    "channels_last",
    "nf",
    "nx",  # both of transformers' Conv1D
    "output_padding",
    "stood_for",
    "transposed",
    "_reversed_padding_repeated_twice",
)


def empty_like(
    layer: nn.Module,
    rank: int | None,
    *,
    inputs: int | None = None,
    outputs: int | None = None,
    train_basis: bool = False,
    offset: bool = False,
    output_rank: int | None = None,
    kernel_rank: int | None = None,
    bias: bool = True,
    centred: bool = True,
) -> PCModule:
    """Return an uninitialised principal component layer with the stock layer's stride, padding, dtype, device, ...

    ``inputs`` and ``outputs`` say how many of the layer's channels remain; None means all. Fill it with ``load_``.
    No random number is drawn. What is frozen stays frozen; hooks and train or eval mode come along.
    """
    kind = layer_type(layer)
    if kind is None:
        raise ConfigError(f"{type(layer).__name__} is not a Linear, Conv1d, Conv2d or Conv3d")
    weight = canonical_weight(layer)
    new = uninitialised(
        LAYERS[kind.kind],
        in_width(layer) if inputs is None else inputs,
        out_width(layer) if outputs is None else outputs,
        rank=rank,
        bias=bias,
        centred=centred,
        train_basis=train_basis,
        offset=offset,
        output_rank=output_rank,
        device=weight.device,
        dtype=weight.dtype,
        **({name: getattr(layer, name) for name in MOVEMENT} | {"kernel_rank": kernel_rank} if kind.spatial else {}),
    )
    if (layout := layout_of(weight)) != torch.contiguous_format:
        new.to(memory_format=layout)  # type: ignore[call-overload]
        new.channels_last = True
    inherit_(new, layer)
    if type(layer) is not new.stock and type(layer).forward is new.stock.forward:
        new.stood_for = type(layer)
    new.requires_grad_(weight.requires_grad)
    if isinstance(layer.bias, Tensor) and new.bias is not None:
        new.bias.requires_grad_(layer.bias.requires_grad)
    return new


def from_layer(
    layer: nn.Module, mean: Tensor, basis: Tensor, *, train_basis: bool = False, offset: bool = False
) -> PCModule:
    """Return the paper's input transformation of one layer: mean (m,) and basis (m, r) of its input.

    >>> layer = nn.Linear(3, 2)
    >>> full_rank = from_layer(layer, mean=torch.ones(3), basis=torch.eye(3))
    >>> x = torch.randn(5, 3)
    >>> torch.allclose(full_rank(x), layer(x), atol=1e-6)
    True
    """
    new = empty_like(layer, basis.shape[1], train_basis=train_basis, offset=offset)
    weight, groups = canonical_weight(layer), groups_of(layer)
    bias = layer.bias if isinstance(layer.bias, Tensor) else None
    projected = reader_transform(weight, bias, mean, basis, kept=None, order="truncate_first", groups=groups)
    if offset:
        projected = projected._replace(offset_weight=dropped_part(weight, projected, groups))
    new.load_(projected)
    return new


def uninitialised(kind: type[Module], *arguments: Any, device: torch.device, **keywords: Any) -> Module:
    """Make a layer whose tensors hold nothing yet, without drawing random numbers."""
    return kind(*arguments, device="meta", **keywords).to_empty(device=device)


def inherit_(new: nn.Module, old: nn.Module) -> None:
    """Give a module the hooks and the train or eval mode of the one whose place it takes."""
    new.train(old.training)
    for name in HOOKS:
        setattr(new, name, getattr(old, name))  # the same dictionaries: handles given out earlier still remove


def hand_on_(new: nn.Module, old: nn.Module) -> None:
    """Give a module the attributes that somebody has hung on the one whose place it takes; its own stay as they are."""
    for name, value in vars(old).items():
        own = name in vars(new) or isinstance(getattr(type(new), name, None), property)
        if not own and name not in OF_ITS_CLASS:
            new.__dict__[name] = value
