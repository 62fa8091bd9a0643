"""The new coordinates of every layer that a plan transforms: all that surgery takes from the statistics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor, nn

from pcn.config import BasisKind
from pcn.errors import PlanError
from pcn.layers import LAYER_TYPES, by_group, canonical_weight, unwrap
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan
from pcn.plans.ranks import CENTRED, few_samples, is_made_up
from pcn.rewriting import directions
from pcn.rewriting.directions import Directions
from pcn.statistics import Statistics
from pcn.tables import shorten
from pcn.warn import warn


@dataclass(frozen=True)
class Basis:
    """A layer's mean (m,) and directions (m, r); what else is there where it is wanted.

    ``variances`` (g, r) are those of the coordinates that the new layer reads, ``total`` (g,) is that of all inputs
    about their mean. Where that is not taken off, ``mean`` is 0, and ``within`` (m,) is what it is. Of a layer that has
    an output basis alone there are mean and ``outputs`` alone.
    ``block`` holds the directions of the kept inputs alone (|S|, r), ``dual`` (m, r) leads back from coordinates along
    directions that are not orthonormal, and ``outputs`` (n, s) expands trained outputs. ``patterns`` (g*p, *kernel) are
    those of taps in which directions are read, and ``pattern_mask`` (g*r, taps) how many belong to each of these;
    ``pattern_dual`` leads back from them, and ``pattern_variances`` (g*p,) are the variances of these coordinates,
    relative to that of their direction. All coordinates of a group are ``scale`` (g,) times as large as these tensors
    make them.
    """

    mean: Tensor
    directions: Tensor | None = None
    variances: Tensor | None = None
    total: Tensor | None = None
    block: Tensor | None = None
    dual: Tensor | None = None
    outputs: Tensor | None = None
    patterns: Tensor | None = None
    pattern_mask: Tensor | None = None
    pattern_dual: Tensor | None = None
    pattern_variances: Tensor | None = None
    scale: Tensor | None = None
    within: Tensor | None = None


Bases = dict[str, Basis]


def find_bases(plan: Plan, stats: Statistics, model: nn.Module) -> Bases:
    """Work out the coordinates for a plan, all but patterns of taps, which :mod:`pcn.rewriting.patterns` measures."""
    base = unwrap(model)
    stats.check_about_the_mean((layer.name for layer in plan.transformed if layer.centred), CENTRED)
    stats = stats.about_zero(layer.name for layer in plan.transformed if not layer.centred)
    _warn_of_few_samples(plan, stats)
    return {layer.name: _find(plan, layer, stats, base) for layer in plan.transformed}


def _warn_of_few_samples(plan: Plan, stats: Statistics) -> None:
    """Warn of bases that are partly made up: what such a layer reads along them is arbitrary."""
    layers = [layer for layer in plan.transformed if is_made_up(layer, stats.shown(layer.name))]
    if layers:
        first = layers[0]
        others = shorten([layer.name for layer in layers[1:]])
        warn(
            f"{first.name!r}: {few_samples(first, stats)}{f' (likewise in {others})' if others else ''}; give more "
            "calibration batches, a few times as many samples as layers have inputs, or ask for smaller ranks"
        )


def kept_inputs(plan: Plan, layer: LayerPlan) -> Tensor | None:
    """The inputs of a layer that are left, counted over all groups, or None for all."""
    kept = plan.kept(f"{layer.name}.weight", LAYER_TYPES[layer.kind].in_dim)
    if kept is None:
        return None
    width = layer.in_features // layer.groups
    return (torch.arange(layer.groups)[:, None] * width + torch.tensor(kept)).flatten()


def _find(plan: Plan, layer: LayerPlan, stats: Statistics, model: nn.Module) -> Basis:
    if layer.rank is None:
        return Basis(stats.mean(layer.name), outputs=_outputs(plan, layer, stats, model))
    found = _directions(plan, layer, stats, model)
    outputs = None
    if layer.output_rank is not None:
        weight = by_group(weight_of(plan, layer, model).to(found.along), layer.groups)
        outputs = directions.output_directions(weight, found, layer.output_rank).flatten(0, 1)
    kept, block = kept_inputs(plan, layer), None
    found = directions.preconditioned(found, layer.precondition)
    variances, within = found.variances, stats.mean_within(layer.name)
    if kept is not None:
        index = kept.to(found.along.device).reshape(layer.groups, -1) % found.along.shape[1]
        variances = directions.left_of(found, index, within.reshape(layer.groups, -1))
        if layer.order == "kept_block":
            block, variances = stats.block_basis(layer.name, kept, layer.rank)
    dual = None if found.back is found.along else found.back.flatten(0, 1)
    total = stats.variance(layer.name)
    basis = Basis(stats.mean(layer.name), found.along.flatten(0, 1), variances, total, block, dual, outputs)
    if not layer.centred:
        basis = replace(basis, within=within)
    if layer.sized_for == "sgd":
        return basis
    return replace(basis, scale=directions.size_for_adam(variances.clamp_min(0).sqrt(), stats.deviations(layer.name)))


def _outputs(plan: Plan, layer: LayerPlan, stats: Statistics, model: nn.Module) -> Tensor:
    """The output basis (n, s) of a layer that reads its input as it is."""
    assert layer.output_rank is not None
    mean = stats.mean(layer.name)
    if layer.basis == "random":
        outputs = layer.kept_outputs // layer.groups
        return directions.drawn(layer.groups, outputs, layer.output_rank, layer.name).flatten(0, 1).to(mean)
    weight = by_group(weight_of(plan, layer, model).to(mean), layer.groups)
    found = directions.response_directions(weight, stats.moments[stats.layers[layer.name]], layer.output_rank)
    return found.flatten(0, 1)


def _directions(plan: Plan, layer: LayerPlan, stats: Statistics, model: nn.Module) -> Directions:
    """The directions of the kind that the plan asks for, group by group."""
    assert layer.rank is not None
    if layer.basis == "pca":
        values, vectors = stats.spectrum(layer.name).leading(layer.rank)
        return Directions(vectors, vectors, values)
    covariance = stats.covariance(layer.name)
    if layer.basis == "random":
        found = directions.random(covariance, layer.rank, layer.name)
    else:
        found = directions.balanced(covariance, _gram(plan, layer, stats, model).to(covariance), layer.rank)
    return directions.uncorrelated(found, covariance)


def _gram(plan: Plan, layer: LayerPlan, stats: Statistics, model: nn.Module) -> Tensor:
    """How much errors in what a layer reads matter: to the loss, or to the layer's own output."""
    if layer.basis == "balanced":
        return stats.gradient_moments(layer.name)
    if layer.basis == "response":
        return directions.response_gram(by_group(weight_of(plan, layer, model).double(), layer.groups))
    raise PlanError(
        f"{layer.name!r} has the basis {layer.basis!r} in the plan, which is unknown: give one of "
        f"{', '.join(get_args(BasisKind))}"
    )


def weight_of(plan: Plan, layer: LayerPlan, model: nn.Module) -> Tensor:
    """A layer's weight as it is now, (n, m/g, *kernel), for the outputs that are left."""
    weight = canonical_weight(model.get_submodule(layer.name)).detach()
    rows = plan.kept(f"{layer.name}.weight", LAYER_TYPES[layer.kind].out_dim)
    return weight if rows is None else weight[list(rows)]
