"""The layer types that can be transformed, and how each is seen: as one weight of shape (out, in / groups, *kernel)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MethodType

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize

from pcn.errors import ConfigError
from pcn.memory import Places


@dataclass(frozen=True)
class LayerType:
    """One kind of layer: where its channels stand in its input and in its weight."""

    kind: str
    spatial: int  # number of spatial dimensions of the input; channels stand just before them
    out_dim: int = 0  # dimension of the weight that counts outputs
    in_dim: int = 1  # dimension of the weight that counts inputs (per group)

    @property
    def channel_dim(self) -> int:
        """The dimension of the input that holds channels, from the right."""
        return -(self.spatial + 1)


LINEAR = LayerType("linear", spatial=0)
TRANSPOSED_LINEAR = LayerType("transposed_linear", spatial=0, out_dim=1, in_dim=0)  # transformers' Conv1D
CONVOLUTIONS: dict[type[nn.Module], LayerType] = {
    nn.Conv1d: LayerType("conv1d", 1),
    nn.Conv2d: LayerType("conv2d", 2),
    nn.Conv3d: LayerType("conv3d", 3),
}
LAYER_TYPES = {t.kind: t for t in (LINEAR, TRANSPOSED_LINEAR, *CONVOLUTIONS.values())}

# How a class is seen, and its subclasses too, unless they have a forward function of their own.
TYPE_OF: dict[type[nn.Module], LayerType] = {nn.Linear: LINEAR, **CONVOLUTIONS}

PARAMETRISED = "its weight is parametrised: torch.nn.utils.parametrize.remove_parametrizations makes it an ordinary one"

# Methods by which a layer computes: a class that has one of its own is no stock layer.
COMPUTES = ("forward", "_conv_forward", "__call__", "_call_impl")

# What a principal component layer has and a stock one has not: a user's attribute of that name would have no place.
NEEDED = (
    "basis",
    "centred",
    "channels_last",
    "deal_patterns_evenly_",
    "full_kernel",
    "geometry",
    "kernel_basis",
    "kernel_mask",
    "kernel_rank",
    "load_",
    "mean",
    "offset_weight",
    "output_basis",
    "output_rank",
    "rank",
    "stock",
    "stood_for",
    "tap_patterns",
    "train_basis",
)

STATE_METHODS = ("get_extra_state", "_save_to_state_dict", "_load_from_state_dict")
STATE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)

# These read the weights of their children instead of calling them (the encoder layer on its fast path in eval mode).
READS_CHILDREN_DIRECTLY = (nn.MultiheadAttention, nn.TransformerEncoderLayer)

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # layouts, by the number of dimensions


class Transformed(nn.Module):
    """A layer that has been transformed: it is left alone from then on."""


def layer_type(module: nn.Module) -> LayerType | None:
    """Return how a module is seen, or None when its type cannot be transformed.

    >>> layer_type(nn.Conv2d(3, 8, 3)).kind
    'conv2d'
    """
    cls = type(module)
    for stock, kind in TYPE_OF.items():
        if isinstance(module, stock) and all(getattr(cls, n, None) is getattr(stock, n, None) for n in COMPUTES):
            return kind
    if any(c.__name__ == "Conv1D" and c.__module__ == "transformers.pytorch_utils" for c in cls.__mro__):
        return TRANSPOSED_LINEAR
    return None


def groups_of(module: nn.Module) -> int:
    return int(getattr(module, "groups", 1))


def canonical_weight(module: nn.Module) -> Tensor:
    """Return the weight as (out, in / groups, *kernel), a view of the module's own."""
    kind = layer_type(module)
    assert kind is not None
    assert isinstance(module.weight, Tensor)
    return module.weight.transpose(0, 1) if kind.out_dim == 1 else module.weight


def in_width(module: nn.Module) -> int:
    return canonical_weight(module).shape[1] * groups_of(module)


def out_width(module: nn.Module) -> int:
    return canonical_weight(module).shape[0]


def transformable_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, str | None]]:
    """Yield every module with parameters of its own as (name, module, why it is left alone or None)."""
    owners = _parameter_owners(model)
    direct = _read_directly(model)
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if isinstance(module, parametrize.ParametrizationList):
            continue  # it is that of the layer above, which has a reason of its own
        if parametrize.is_parametrized(module):
            yield name, module, PARAMETRISED
        elif own or layer_type(module) is not None:
            yield name, module, _why_left_alone(name, module, owners, direct)


def _why_left_alone(name: str, module: nn.Module, owners: Places[str], direct: dict[int, str]) -> str | None:
    """Say why a module with parameters of its own cannot be transformed; None where it can."""
    if isinstance(module, Transformed):
        return "it is a principal component layer already"
    if (kind := layer_type(module)) is None:
        return _not_a_layer(module)
    if name == "":
        return "the model is this one layer: it has no parent to swap it in"
    if isinstance(module.weight, nn.parameter.UninitializedParameter):
        return "it is lazy: run the model once first"
    if id(module) in direct:
        return direct[id(module)]
    if (computed := computed_tensor(module)) is not None:
        return f"its {computed} is computed from other tensors (pruning, weight or spectral norm)"
    if (more := more_than_weights(module)) is not None:
        return more
    if "forward" in module.__dict__:
        return "its forward function was replaced"
    if (reason := _attached(module) or _shared(module, owners)) is not None:
        return reason
    weight = canonical_weight(module)
    if kind.spatial and weight.shape[1] == 1 and groups_of(module) > 1:
        return "depthwise: one channel per group has no smaller subspace"
    if not weight.is_floating_point():
        return f"its weight is {weight.dtype}, not floating point"
    return None


def _not_a_layer(module: nn.Module) -> str:
    if isinstance(module, torch.jit.ScriptModule):
        return "it is TorchScript: transform the model before torch.jit.script or torch.jit.trace"
    return f"{type(module).__name__} is not a Linear, Conv1d, Conv2d or Conv3d"


def _parameter_owners(model: nn.Module) -> Places[str]:
    modules = model.named_modules()
    return Places((parameter, name) for name, module in modules for parameter in module.parameters(recurse=False))


def _shared(module: nn.Module, owners: Places[str]) -> str | None:
    for name, parameter in module.named_parameters(recurse=False):
        holders = sorted(set(owners.over(parameter)))
        if len(holders) > 1:
            return f"its {name} is shared by {' and '.join(map(repr, holders))}"
    return None


def more_than_weights(module: nn.Module) -> str | None:
    """Say what else a layer holds: a principal component layer, or one with fewer outputs, has no place for it.

    >>> more_than_weights(nn.Linear(2, 2))
    """
    held = [*module._parameters, *module._buffers, *module._modules]
    more = next((name for name in held if name not in ("weight", "bias")), None)
    return None if more is None else f"it holds {more!r} beside its weight and bias"


def _attached(module: nn.Module) -> str | None:
    """Say what somebody has attached to a layer that a new one in its place could not take over."""
    if module._compiled_call_impl is not None:
        return "it was compiled by itself, with layer.compile()"
    if any(getattr(module, hooks) for hooks in STATE_HOOKS):
        return "it has hooks on its state dict, which know its tensors as they are"
    if own := next((name for name in STATE_METHODS if _is_own(module, name)), None):
        return f"its class has a {own} of its own, which knows its tensors as they are"
    if module.weight._backward_hooks:
        return "its weight has a hook on its gradient, which knows it as it is: remove it, and register it again later"
    for name, value in vars(module).items():
        if name in NEEDED:
            return f"it has an attribute {name!r}, which a principal component layer needs for itself"
        if isinstance(value, MethodType) and value.__self__ is module:
            return f"its {name!r} is a method of this one object"
    return None


def _is_own(module: nn.Module, method: str) -> bool:
    """Whether a class that derives from a stock layer's does something else than that."""
    stock = next((stock for stock in TYPE_OF if isinstance(module, stock)), nn.Module)
    return getattr(type(module), method) is not getattr(stock, method)


def computed_tensor(module: nn.Module) -> str | None:
    """Name the tensor of a layer that is no parameter of its own, if there is one."""
    tensors = (name for name in ("weight", "bias") if isinstance(getattr(module, name, None), Tensor))
    return next((name for name in tensors if name not in module._parameters), None)


def _read_directly(model: nn.Module) -> dict[int, str]:
    """Say for which modules a new one in their place would not be called, and why: id -> reason."""
    found: dict[int, str] = {}
    for module in model.modules():
        if isinstance(module, torch._dynamo.eval_frame.OptimizedModule):
            found[id(module._orig_mod)] = "torch.compile was given this one layer and holds on to it"
        if isinstance(module, READS_CHILDREN_DIRECTLY):
            why = f"its parent {type(module).__name__} reads its weight directly"
            found |= {id(child): why for child in module.modules() if child is not module}
    return found


def by_group(weight: Tensor, groups: int) -> Tensor:
    """View a weight of shape (out, in / groups, *kernel) as (groups, outputs of one, its inputs, kernel positions).

    >>> by_group(torch.ones(6, 2, 3, 3), groups=2).shape
    torch.Size([2, 3, 2, 9])
    """
    return weight.reshape(groups, -1, weight.shape[1], weight[0, 0].numel())


def layout_of(tensor: Tensor) -> torch.memory_format:
    """How a tensor lies in memory: with its channels last, or in the plain order.

    >>> layout_of(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last))
    torch.channels_last
    """
    channels_last = CHANNELS_LAST.get(tensor.dim())
    if channels_last is None or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=channels_last):
        return torch.contiguous_format
    return channels_last


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module that ``torch.compile`` or a parallel wrapper holds, so that names are the user's own."""
    while True:
        if isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
            model = model._orig_mod
        elif isinstance(model, DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif isinstance(model, nn.Module):
            return model
        else:
            raise ConfigError(f"the model is of type {type(model).__name__}: give a torch.nn.Module")


def wrapper_of(model: nn.Module) -> DistributedDataParallel | None:
    """The DistributedDataParallel around a model, perhaps itself inside ``torch.compile``, or None."""
    while isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
        model = model._orig_mod
    return model if isinstance(model, DistributedDataParallel) else None
