"""A copy of a model without its weights, in which some channels are gone: to see whether it would still run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pcn.memory import tensors_by_name
from pcn.plans.plan import Slices
from pcn.running.copying import copied


def skeleton(model: nn.Module, slices: Slices) -> nn.Module:
    """Copy a model's structure with empty tensors of the sizes that the slices leave, on its own device."""
    memo: dict[int, Any] = {}
    sizes = {name: {dim: len(cut.kept) for dim, cut in dims.items()} for name, dims in slices.items()}
    touched = set()
    for name, tensor in tensors_by_name(model).items():
        if id(tensor) not in memo or name in sizes:
            memo[id(tensor)] = _empty(tensor, sizes.get(name, {}))
        if name in sizes:
            touched.add(name.rpartition(".")[0])
    bare = copied(model, memo)
    for owner in touched:
        sync_sizes_(bare.get_submodule(owner))
    return bare


def _empty(tensor: Tensor, sizes: dict[int, int]) -> Tensor:
    shape = [sizes.get(dim, size) for dim, size in enumerate(tensor.shape)]
    # Memory that is never touched costs nothing.
    empty = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def sync_sizes_(module: nn.Module) -> None:
    """Set the size attributes of a stock module to what its tensors say, after they have lost channels."""
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.modules.conv._ConvTransposeNd) and isinstance(weight, Tensor):
        module.in_channels, module.out_channels = weight.shape[0], weight.shape[1] * module.groups
    elif isinstance(module, nn.modules.conv._ConvNd) and isinstance(weight, Tensor):
        if module.groups == module.in_channels and module.groups > 1:  # depthwise: one group per channel left
            module.groups = weight.shape[0] * module.groups // module.out_channels
        module.in_channels = weight.shape[1] * module.groups
        module.out_channels = weight.shape[0]
    elif isinstance(module, nn.Linear) and isinstance(weight, Tensor):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        sized = weight if isinstance(weight, Tensor) else module.running_mean
        if isinstance(sized, Tensor):
            module.num_features = sized.shape[0]
    elif isinstance(module, nn.PReLU) and isinstance(weight, Tensor):
        module.num_parameters = weight.shape[0]
    elif isinstance(module, nn.Embedding) and isinstance(weight, Tensor):
        module.embedding_dim = weight.shape[1]
    elif type(module).__name__ == "Conv1D" and isinstance(weight, Tensor) and hasattr(module, "nf"):
        for name, size in zip(("nx", "nf"), weight.shape, strict=True):
            setattr(module, name, size)
