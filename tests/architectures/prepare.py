"""An architecture with all that the tests need of it: built, measured and traced once."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

import pcn
from architectures.architecture import Architecture, Batch
from pcn.layers import LAYER_TYPES
from pcn.rewriting.bases import kept_inputs


@dataclass(frozen=True)
class Prepared:
    """A model that must not be changed, a batch, its statistics on that batch and its channel graph, if it has one."""

    model: nn.Module
    batch: Batch
    stats: pcn.Statistics
    graph: pcn.ChannelGraph | None

    def transformed(self, **settings: Any) -> tuple[nn.Module, pcn.Plan]:
        """Return a copy of the model with full bases everywhere and what else is asked for, and its plan."""
        model = copy.deepcopy(self.model)
        config = pcn.PCNConfig(rank=1.0, skip_larger=False, **settings)
        return model, pcn.make_plan(model, self.stats, config, graph=self.graph).apply_(model, self.stats)

    def outputs(self) -> list[Tensor]:
        return outputs(self.model, self.batch)


@cache
def prepare(architecture: Architecture, dtype: torch.dtype = torch.float64) -> Prepared:
    model, batch = architecture.build(dtype), architecture.batch(dtype)
    stats = pcn.analyze(model, [batch])
    try:
        graph = pcn.trace(model, stats.example)
    except pcn.TraceError:
        graph = None
    return Prepared(model, batch, stats, graph)


@cache
def pruned(architecture: Architecture) -> tuple[nn.Module, pcn.Plan]:
    """The architecture in full bases with half of the outputs, wherever they can go."""
    return prepare(architecture).transformed(keep_outputs=0.5)


@torch.no_grad()
def outputs(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Run a model and return all floating-point tensors that come out.

    A copy, as LeViT keeps at inference what it has computed, and a graph that was captured before would be another's;
    what was exported keeps nothing.
    """
    own = model if isinstance(model, GraphModule) else copy.deepcopy(model)
    result = own(**batch)
    leaves = tree_leaves(dict(result) if isinstance(result, dict) else result)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def difference(first: list[Tensor], second: list[Tensor]) -> float:
    """The largest difference between two lists of outputs, relative to the largest value of each."""
    assert [t.shape for t in first] == [t.shape for t in second]
    pairs = zip(first, second, strict=True)
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)


def with_dropped_inputs_at_zero(model: nn.Module, plan: pcn.Plan) -> nn.Module:
    """Return a copy of the original model in which every transformed layer reads zeros in its dropped inputs."""
    model = copy.deepcopy(model)
    for layer in plan.transformed:
        kept = kept_inputs(plan, layer)
        if kept is not None:
            mask = torch.zeros(layer.in_features, dtype=torch.float64).index_fill(0, kept, 1.0)
            mask = mask.reshape(-1, *[1] * LAYER_TYPES[layer.kind].spatial)
            model.get_submodule(layer.name).register_forward_pre_hook(_hide(mask))
    return model


def _hide(mask: Tensor) -> Any:
    return lambda module, inputs: (inputs[0] * mask, *inputs[1:])
