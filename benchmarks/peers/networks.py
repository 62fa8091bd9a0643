"""Plain and principal component networks of a given size, built afresh: what a person would train instead."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pcn.config import PCNConfig
from pcn.costs.count import count
from pcn.graph import ChannelGraph, trace
from pcn.maths.patterns import coordinates
from pcn.models.cifar_resnet import CIFARResNet
from pcn.models.initialise import glorot_uniform_, resnet_
from pcn.nn import PCModule
from pcn.plans.making import make_plan
from pcn.plans.plan import set_plan_
from pcn.training.named_models import build_named
from peers.parents import IMAGES
from peers.plans import read_plan

TRIES = 6
WHOLE = PCNConfig(rank=1.0, skip_larger=False)  # a plan that changes nothing


def narrow(parent: str, options: dict[str, Any], target: int) -> nn.Module:
    """The parent with every hidden width times the same share, nearest to so many trainable parameters."""
    model = build_named(parent, options)
    graph, full = traced(model), hidden_widths(model)
    narrowest = min(full.values())
    width = round(narrowest * math.sqrt(target / count(model).trainable))
    for _ in range(TRIES):  # the narrowest layer decides, so that the others keep their proportions
        widths = {name: outputs * width // narrowest for name, outputs in full.items()}
        model = with_widths(build_named(parent, options), graph, widths)
        trainable = count(model).trainable
        step = round((target - trainable) * width / (2 * trainable))  # parameters go with the square of the width
        if step == 0:
            break
        width += step
    return model


def planned(parent: str, options: dict[str, Any], plans: str, name: str) -> nn.Module:
    """The planner's architecture with fresh weights and random orthonormal bases."""
    model = build_named(parent, options)
    read_plan(plans, name).reshape_(model)
    initialise_(model)
    return model


def planned_widths(parent: str, options: dict[str, Any], plans: str, name: str) -> nn.Module:
    """A plain network with the widths that the planner suggests, which trains about as much as its plan."""
    model = build_named(parent, options)
    graph = traced(model)
    return with_widths(model, graph, read_plan(plans, name).suggest_widths(graph))


def hidden_widths(model: nn.Module) -> dict[str, int]:
    """The outputs of every layer but the last, which has one for each class."""
    layers = make_plan(model, None, WHOLE).layers
    return {name: layer.out_features for name, layer in list(layers.items())[:-1]}


def traced(model: nn.Module) -> ChannelGraph:
    return trace(model, torch.zeros(2, *IMAGES))


def with_widths(model: nn.Module, graph: ChannelGraph, widths: Mapping[str, int]) -> nn.Module:
    """The model as a plain network in which layers have so many outputs, with fresh weights."""
    make_plan(model, None, WHOLE, graph=graph).narrowed(graph, widths).reshape_(model)
    set_plan_(model, None)
    initialise_(model)
    return model


@torch.no_grad()
def initialise_(model: nn.Module) -> None:
    """Draw weights as the parent draws its own, in layers that have a basis too."""
    resnet = isinstance(model, CIFARResNet)
    (resnet_ if resnet else glorot_uniform_)(model)
    for module in model.modules():
        if isinstance(module, PCModule):
            kernel = torch.empty_like(module.full_kernel)
            if resnet and kernel.ndim == 4:
                nn.init.kaiming_normal_(kernel, mode="fan_out", nonlinearity="relu")
            else:
                nn.init.xavier_uniform_(kernel)
            along = module.tap_patterns
            module.weight.copy_(kernel if along is None else coordinates(kernel, along, module.groups))
            nn.init.zeros_(module.bias)
