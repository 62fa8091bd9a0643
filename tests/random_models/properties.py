"""What must hold for every model and every request. Each check returns a word on what happened, for the summary."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import pcn
from pcn import PCNConfig, PCNError, Plan, PlanError, Statistics
from pcn.config import L1Threshold
from pcn.costs.count import count
from pcn.layers import LAYER_TYPES, canonical_weight, groups_of
from pcn.nn import PCModule
from pcn.plans.keep import target
from random_models import requests
from random_models.choices import Choices
from random_models.model import Case, random_case
from small import record

TOLERANCE = 1e-9


def full_rank_keeps_the_function(c: Choices) -> str:
    case, stats = measured(c)
    plan = pcn.make_plan(case.model, stats, suited(requests.full_rank(c, case.model), stats))
    expected = run(case.model, case)
    plan.apply_(case.model, stats)
    assert_close(run(case.model, case), expected)
    return "transformed" if plan.transformed else "nothing to transform"


def dropped_channels_count_as_zero_or_mean(c: Choices) -> str:
    """The exact statements about a full basis, held against the untouched model with hooks on its readers."""
    case, stats = measured(c)
    config = suited(requests.full_basis(c, case.model), stats)
    plan = planned(case, stats, config)
    if plan is None:
        return "conflict"
    check_reasons(plan, config, case.model)
    expected = with_hooks(case.model, plan, stats, lambda: run(case.model, case))
    untouched = {n: t.clone() for n, t in case.model.state_dict().items() if config.excludes(n.rpartition(".")[0])}
    plan.apply_(case.model, stats)
    assert_close(run(case.model, case), expected)
    after = case.model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in untouched.items())
    return "dropped" if plan.slices else "kept all"


def low_ranks_run_and_count(c: Choices) -> str:
    case, stats = measured(c)
    config = suited(requests.low_rank(c, case.model), stats)
    plan = planned(case, stats, config)
    if plan is None:
        return "conflict"
    check_reasons(plan, config, case.model)
    shapes = [tensor.shape for tensor in run(case.model, case)]
    plan.apply_(case.model, stats)
    assert [tensor.shape for tensor in run(case.model, case)] == shapes
    assert Plan.from_json(plan.to_json()) == plan
    check_counts(plan, case.model)
    check_round_trips(case)
    return "dropped" if plan.slices else "transformed" if plan.transformed else "nothing to do"


def failure_changes_nothing(c: Choices) -> str:
    """Requests by exact name, plans that were tampered with: a typed error and the same model, or a plan that works."""
    case, stats = measured(c)
    before = snapshot(case.model)
    try:
        plan = pcn.make_plan(case.model, stats, requests.named(c, case.model))
    except PCNError as error:
        assert_same(snapshot(case.model), before)
        return f"refused: {type(error).__name__}"
    broken = _tampered(c, plan)
    try:
        broken.apply_(case.model, stats)
    except PlanError:
        assert_same(snapshot(case.model), before)
        assert pcn.get_plan(case.model) is None
        plan.apply_(case.model, stats)
        run(case.model, case)
        return "put back"
    return "applied"


Property = Callable[[Choices], str]
PROPERTIES: tuple[Property, ...] = (
    full_rank_keeps_the_function,
    dropped_channels_count_as_zero_or_mean,
    low_ranks_run_and_count,
    failure_changes_nothing,
)


def measured(c: Choices) -> tuple[Case, Statistics]:
    """A random model and its statistics; measuring it leaves no trace."""
    case = random_case(c)
    before = snapshot(case.model)
    try:
        stats = pcn.analyze(case.model, case.inputs.split(4), gradients=squares)
    except pcn.StatisticsError as error:
        assert "modified by an inplace operation" in str(error)
        stats = pcn.analyze(case.model, case.inputs.split(4))  # it can run but not be trained
    assert_same(snapshot(case.model), before)
    return case, stats


def suited(config: PCNConfig, stats: Statistics) -> PCNConfig:
    """The request, with another basis where a model cannot be trained and so has no gradients."""
    return replace(config, basis="response") if config.needs_gradients and not stats.gradients else config


def squares(model: nn.Module, batch: Tensor) -> Tensor:
    """A loss for models that may put out anything."""
    return torch.stack([output.square().sum() for output in tree_leaves(model(batch))]).sum() / len(batch)


def planned(case: Case, stats: Statistics, config: PCNConfig) -> Plan | None:
    """A plan, or None where the request contradicts itself; planning leaves no trace."""
    before = snapshot(case.model)
    try:
        plan = pcn.make_plan(case.model, stats, config)
    except pcn.CouplingError:
        plan = None
    assert_same(snapshot(case.model), before)
    return plan


def run(model: nn.Module, case: Case) -> list[Tensor]:
    modes = [(module, module.training) for module in model.modules()]
    with torch.no_grad():
        outputs = tree_leaves(model.eval()(case.inputs))
    for module, training in modes:
        module.training = training
    return outputs


def assert_close(given: list[Tensor], expected: list[Tensor]) -> None:
    assert len(given) == len(expected)
    for one, other in zip(given, expected, strict=True):
        assert one.shape == other.shape
        scale = other.abs().max().clamp_min(1.0)
        assert ((one - other).abs().max() / scale).item() < TOLERANCE


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything that must be as it was when an operation that changes nothing is over."""
    grads = {f"grad {name}": parameter.grad for name, parameter in model.named_parameters()}
    return {**record(model), **grads, "random": torch.get_rng_state().tolist()}


def assert_same(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert [key for key in {**given, **expected} if given.get(key) != expected.get(key)] == []


def with_hooks(model: nn.Module, plan: Plan, stats: Statistics, call: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Run the untouched model with every transformed reader deaf to the channels that it loses."""
    handles = []
    for layer in plan.transformed:
        module = model.get_submodule(layer.name)
        kept = plan.kept(f"{layer.name}.weight", LAYER_TYPES[layer.kind].in_dim)
        if kept is None:
            continue
        width = layer.in_features // layer.groups
        alive = torch.zeros(width, dtype=torch.float64).index_fill_(0, torch.tensor(kept), 1.0).repeat(layer.groups)
        space = [1] * LAYER_TYPES[layer.kind].spatial
        mask = alive.view(-1, *space)
        handles.append(module.register_forward_pre_hook(lambda _, args, mask=mask: (args[0] * mask,)))
        if layer.order != "truncate_first":
            constant = response(module, (1 - alive) * stats.mean(layer.name)).view(-1, *space)
            handles.append(module.register_forward_hook(lambda _, args, out, constant=constant: out + constant))
    outputs = call()
    for handle in handles:
        handle.remove()
    return outputs


def response(module: nn.Module, constant: Tensor) -> Tensor:
    """What a layer makes of one vector that stands at every position, padding included, output by output."""
    weight = canonical_weight(module).detach()
    summed = weight.reshape(*weight.shape[:2], -1).sum(2)
    width, rows = weight.shape[1], weight.shape[0] // groups_of(module)
    parts = [summed[n] @ constant[n // rows * width : n // rows * width + width] for n in range(weight.shape[0])]
    return torch.stack(parts)


def check_reasons(plan: Plan, config: PCNConfig, model: nn.Module) -> None:
    """Whatever was asked for is done, or the plan says why not."""
    for name, layer in plan.layers.items():
        rule, _ = config.rule_for(name)
        excluded = config.excludes(name) is not None
        assert (layer.rank is None) == (layer.reason is not None)
        if excluded:
            assert not layer.changed
        elif rule.keep_outputs is not None and not isinstance(rule.keep_outputs, L1Threshold):
            wanted = target(rule.keep_outputs, layer.out_features)
            assert layer.kept_outputs <= wanted or layer.output_reason, (
                f"{name} keeps {layer.kept_outputs}, not {wanted}"
            )
    own = {name for name, module in model.named_modules() if list(module.parameters(recurse=False))}
    own = {name.partition(".parametrizations.")[0] for name in own}  # which are parts of the layer that they are in
    assert own <= {*plan.layers, *plan.left_alone}


def check_counts(plan: Plan, model: nn.Module) -> None:
    """The plan's numbers are those of the real modules."""
    for layer in plan.layers.values():
        module = model.get_submodule(layer.name)
        own = (p for name, p in module.named_parameters() if not (layer.tied and name == "weight"))  # counted elsewhere
        assert sum(p.numel() for p in own if p.requires_grad) == layer.trainable_after
        if layer.rank is not None:
            assert isinstance(module, PCModule)
            assert (module.rank, module.output_rank) == (layer.rank, layer.output_rank)
            bases = [tensor for tensor in (module.basis, module.mean, module.output_basis) if tensor is not None]
            assert sum(tensor.numel() for tensor in bases) == layer.basis_size
        outputs = module.weight.shape[LAYER_TYPES[layer.kind].out_dim]
        assert outputs == (layer.kept_outputs if layer.rank is None else layer.trained_outputs)
    for name, dims in plan.slices.items():
        if name.rpartition(".")[0] not in {layer.name for layer in plan.transformed}:
            tensor = {**dict(model.named_parameters()), **dict(model.named_buffers())}[name]
            assert all(tensor.shape[dim] == len(cut.kept) for dim, cut in dims.items())
    assert count(model).trainable <= count(model).total


def check_round_trips(case: Case) -> None:
    """Saved and loaded, folded, made plain: the same function every time."""
    expected = run(case.model, case)
    with tempfile.TemporaryDirectory() as folder:
        pcn.save(case.model, Path(folder) / "small")
        loaded = pcn.load(case.rebuild(), Path(folder) / "small")
    assert all(torch.equal(one, other) for one, other in zip(run(loaded, case), expected, strict=True))
    offset = any(isinstance(m, PCModule) and m.offset_weight is not None for m in case.model.modules())
    for form in ("dense",) if offset else ("dense", "factored"):
        plain = pcn.to_plain(case.model, form=form)
        assert not any(isinstance(module, PCModule) for module in plain.modules())
        assert_close(run(plain, case), expected)
    folded = copy.deepcopy(case.model)
    gained = {folded.get_submodule(name) for name in pcn.fold_(folded)}
    assert_close(run(folded, case), expected)
    original = {name: tensor.shape for name, tensor in case.rebuild().state_dict(keep_vars=True).items()}
    shapes = {name: tensor.shape for name, tensor in folded.state_dict().items()}
    assert {name: shape for name, shape in shapes.items() if name in original} == original
    new_biases = {f"{name}.bias" for name, m in folded.named_modules(remove_duplicate=False) if m in gained}
    assert shapes.keys() - original.keys() == new_biases
    assert [type(m).__name__ for m in folded.modules()] == [type(m).__name__ for m in case.rebuild().modules()]


def _tampered(c: Choices, plan: Plan) -> Plan:
    """A plan with one thing wrong with it, or nothing."""
    names = list(plan.slices)
    kind = c.below(3)
    if kind == 1 and names:
        gone = c.pick(names)
        return replace(plan, slices={name: dims for name, dims in plan.slices.items() if name != gone})
    if kind == 2 and plan.layers:
        name = c.pick(list(plan.layers))
        wrong = replace(plan.layers[name], in_features=plan.layers[name].in_features + plan.layers[name].groups)
        return replace(plan, layers={**plan.layers, name: wrong})
    return plan
