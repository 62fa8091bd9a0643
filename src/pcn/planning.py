"""Making a Plan from a configuration and statistics: ranks first, then the outputs that nobody needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pcn.config import ExplainedVariance, PCNConfig, SpectrumLike, Threshold, as_rank_rule
from pcn.dropping import plan_outputs
from pcn.errors import ConfigError, PlanError, TraceError
from pcn.example import Example
from pcn.graph import ChannelGraph, trace
from pcn.keep import Request
from pcn.layers import canonical_weight, groups_of, layer_type, transformable_layers, unwrap
from pcn.plan import LayerPlan, Plan, get_plan
from pcn.statistics import Statistics


@dataclass(frozen=True)
class _WidthOnly:
    """Stands for a spectrum where no activation was measured: rules that need variances cannot be answered."""

    width: int

    def count_above(self, variance: float) -> int:
        raise ConfigError("a threshold on variance needs statistics; without them give a rank or a fraction")

    def count_explaining(self, share: float) -> int:
        raise ConfigError("a share of variance needs statistics; without them give a rank or a fraction")


def make_plan(
    model: nn.Module,
    stats: Statistics | None,
    config: PCNConfig | None = None,
    *,
    graph: ChannelGraph | None = None,
    example: Example | None = None,
) -> Plan:
    """Decide what every layer keeps; nothing is changed yet.

    The graph is traced on the statistics' own example unless one is given. Without statistics (``None``) the plan is
    about shapes only: ranks must be numbers or fractions, and of dropped outputs the first ones by index are kept.
    """
    model = unwrap(model)
    config = config or PCNConfig()
    if get_plan(model) is not None:
        raise PlanError("this model has been transformed already; pcn.fold_(model) brings its plain layers back")
    example = example or (stats.example if stats is not None else None)
    tracing_error = None
    if graph is None and example is not None:
        try:
            graph = trace(model, example)
        except TraceError as error:
            tracing_error = str(error)
    layers, left_alone = _plan_inputs(model, stats, config, graph)
    requests = _requests(config, layers)
    if requests and graph is None:
        why = tracing_error or "the model's graph is unknown; give example= to trace it"
        layers = _without_graph(layers, requests, why)
        requests = []
    plan = Plan(_with_graph(layers, graph, example), left_alone=left_alone)
    if requests and graph is not None and example is not None:
        plan = plan_outputs(plan, model, stats, config, requests, graph, example)
    return plan


def _plan_inputs(
    model: nn.Module, stats: Statistics | None, config: PCNConfig, graph: ChannelGraph | None
) -> tuple[dict[str, LayerPlan], dict[str, str]]:
    """Give every layer its rank, or the reason why it has none."""
    found = list(transformable_layers(model))
    config.check_names(name for name, _, _ in found)
    layers: dict[str, LayerPlan] = {}
    left_alone: dict[str, str] = {}
    for name, module, reason in found:
        if layer_type(module) is None or (reason and "parametrised" in reason):
            left_alone[name] = reason or "it cannot be transformed"
            continue
        layer = _describe(name, module)
        reason = reason or _unmeasured(name, stats) or _directly_read(name, graph) or _excluded(name, config)
        layers[name] = _with_rank(layer, stats, config, reason)
    return layers, left_alone


def _describe(name: str, module: nn.Module) -> LayerPlan:
    kind = layer_type(module)
    weight = canonical_weight(module)
    assert kind is not None
    groups = groups_of(module)
    return LayerPlan(
        name,
        kind.kind,
        weight.shape[1] * groups,
        weight.shape[0],
        groups,
        tuple(weight.shape[2:]),
        module.bias is not None,
    )


def _unmeasured(name: str, stats: Statistics | None) -> str | None:
    if stats is None or name in stats.layers:
        return None
    return stats.left_alone.get(name, "the statistics do not cover it")


def _directly_read(name: str, graph: ChannelGraph | None) -> str | None:
    who = None if graph is None else graph.directly_read.get(name)
    return None if who is None else f"{who!r} uses its weight without calling it"


def _excluded(name: str, config: PCNConfig) -> str | None:
    pattern = config.excludes(name)
    return None if pattern is None else f"excluded by {pattern!r}"


def _with_rank(layer: LayerPlan, stats: Statistics | None, config: PCNConfig, reason: str | None) -> LayerPlan:
    rule, exact = config.rule_for(layer.name)
    if reason is None and rule.rank is None:
        reason = "no rank asked for"
    elif reason is not None and exact and config.excludes(layer.name) is None and rule.rank is not None:
        raise ConfigError(f"{layer.name!r} is asked for a rank but must be left alone: {reason}")
    if reason is not None or rule.rank is None:
        return replace(layer, reason=reason)
    width = layer.in_features // layer.groups
    spectrum: SpectrumLike = _WidthOnly(width) if stats is None else stats.spectrum(layer.name)
    rank, note = _rank(layer.name, as_rank_rule(rule.rank), spectrum, config.multiple_of)
    planned = replace(
        layer,
        rank=rank,
        note=note,
        order=rule.order or config.order,
        train_basis=config.train_basis,
        keep_dropped=config.keep_dropped,
        activation=None if stats is None else stats.layers[layer.name],
    )
    if config.skip_larger and planned.trainable_after >= planned.trainable_before:
        return replace(layer, reason=f"rank {rank} of {width} would not make it smaller")
    return planned


def _rank(name: str, rule: object, spectrum: SpectrumLike, multiple_of: int) -> tuple[int, str | None]:
    rank = rule.rank(spectrum)  # type: ignore[attr-defined]
    note = None
    if isinstance(rule, Threshold | ExplainedVariance) and rank < 1:
        rank, note = 1, f"no direction has a variance above {getattr(rule, 'variance', 0.0)}: one is kept"
    if not 1 <= rank <= spectrum.width:
        raise ConfigError(
            f"{name!r} is asked for rank {rank}, but its input has {spectrum.width} dimensions; "
            f"give 1 to {spectrum.width}"
        )
    return min(-(-rank // multiple_of) * multiple_of, spectrum.width), note


def _requests(config: PCNConfig, layers: Mapping[str, LayerPlan]) -> list[Request]:
    requests = []
    for name in layers:
        rule, exact = config.rule_for(name)
        if rule.keep_outputs is not None and config.excludes(name) is None:
            requests.append(Request(name, rule.keep_outputs, exact))
    return requests


def _without_graph(layers: dict[str, LayerPlan], requests: list[Request], why: str) -> dict[str, LayerPlan]:
    for request in requests:
        if request.exact:
            raise TraceError(f"{request.layer!r} is asked to keep {request.keep} outputs, but {why}")
        layers[request.layer] = replace(layers[request.layer], output_reason=why)
    return layers


def _with_graph(
    layers: dict[str, LayerPlan], graph: ChannelGraph | None, example: Example | None
) -> dict[str, LayerPlan]:
    if graph is None:
        return layers
    batch = next((leaf.shape[0] for leaf in tree_leaves(example and example.inputs) if _has_batch(leaf)), 1)
    none = (None, None)
    positions = {name: tuple(count // batch for count in counts) for name, counts in graph.positions.items()}
    return {
        name: replace(
            layer,
            norm_after=graph.norm_after.get(name),
            in_positions=positions.get(name, none)[0],
            out_positions=positions.get(name, none)[1],
            activation=layer.activation or " ".join(graph.reads.get(name, ())) or None,
        )
        for name, layer in layers.items()
    }


def _has_batch(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] > 0
