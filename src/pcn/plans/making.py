"""Making a Plan from a configuration and statistics: ranks first, then the outputs that nobody needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from pcn.config import PCNConfig
from pcn.errors import ConfigError, TraceError
from pcn.graph import ChannelGraph, check_graph, trace
from pcn.layers import transformable_layers, unwrap
from pcn.plans.dropping import plan_outputs
from pcn.plans.fit import check_statistics
from pcn.plans.keep import Request
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan, check_untransformed
from pcn.plans.ranks import rank_layers, stats_for
from pcn.running.example import Batches, Example
from pcn.running.reads import Reads, read_directly
from pcn.running.untouched import training_norms
from pcn.statistics import Statistics

if TYPE_CHECKING:
    from pcn.planner.budget import Budget
    from pcn.planner.measured import Measured

UNCALLED = "how the model is called is unknown; give example= to trace it"


def make_plan(
    model: nn.Module,
    stats: Statistics | None,
    config: PCNConfig | Budget | None = None,
    *,
    graph: ChannelGraph | None = None,
    example: Any = None,
    batches: Batches = (),
    measured: Measured | None = None,
) -> Plan:
    """Decide what every layer keeps; nothing is changed yet.

    With a :class:`pcn.Budget` ranks are chosen to fit it; ``batches`` (or a function that opens them) are needed where
    what they are worth is measured on them, and costs that :func:`pcn.measure_costs` has found need not be again.

    The graph is traced on the statistics' own example unless one is given, as an :class:`Example` or as a batch that
    :func:`pcn.analyze` would take. Without statistics (``None``) the plan is about shapes only: ranks must be numbers
    or fractions, and of dropped outputs the first ones by index are kept.
    """
    model = unwrap(model)
    config = config or PCNConfig()
    check_untransformed(model)
    if stats is not None:
        check_statistics(stats, model)
    if graph is not None:
        check_graph(graph)
    if not isinstance(config, PCNConfig):
        from pcn.planner.budget import Budget
        from pcn.planner.within import plan_within

        if not isinstance(config, Budget):
            raise ConfigError(f"config={config!r}: give a PCNConfig, or a Budget such as Budget(params=0.25)")
        if stats is None:
            raise ConfigError("a budget needs statistics: give those of pcn.analyze(model, batches)")
        return plan_within(model, stats, config, batches=batches, graph=graph, example=example, measured=measured)
    found = list(transformable_layers(model))
    config.check_names(name for name, _, _ in found)
    stats = None if stats is None else stats_for(config, stats)
    given = stats.example if example is None and stats is not None else example
    example = None if given is None else Example.for_model(model, given)
    tracing_error = None
    if graph is None and example is not None:
        try:
            graph = trace(model, example)
        except TraceError as error:
            tracing_error = str(error)
    reads = _read(model, graph, example)
    layers, left_alone = rank_layers(found, stats, config, reads.by)
    layers = _with_unseen(layers, reads)
    requests = _requests(config, layers)
    if requests and (graph is None or example is None):
        why = tracing_error or UNCALLED
        layers = _without_graph(layers, requests, why)
        requests = []
    plan = Plan(_with_graph(layers, graph, example, training_norms(model)), left_alone=left_alone)
    if requests and graph is not None and example is not None:
        plan = plan_outputs(plan, model, stats, config, requests, graph, example)
    return plan


def _read(model: nn.Module, graph: ChannelGraph | None, example: Example | None) -> Reads:
    """The layers whose weights somebody uses without calling them; without a graph the running model tells."""
    if graph is not None:
        return graph.directly_read
    return Reads() if example is None else read_directly(model, example)


def _with_unseen(layers: dict[str, LayerPlan], reads: Reads) -> dict[str, LayerPlan]:
    """Say of layers that change where nobody could look whether their weights are used elsewhere in train mode."""
    if reads.unseen is None:
        return layers
    unseen = f"whether its weight is used elsewhere in train mode is unknown: {reads.unseen}"
    return {name: layer.with_note(unseen) if layer.transformed else layer for name, layer in layers.items()}


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
    layers: dict[str, LayerPlan], graph: ChannelGraph | None, example: Example | None, training: Collection[str]
) -> dict[str, LayerPlan]:
    """What a graph tells of the layers, and which of the batch norms behind them are ``training``."""
    if graph is None:
        return layers
    norms = graph.norm_after
    batch = (example.samples if example is not None else 0) or 1
    none = (None, None)
    positions = {name: tuple(_shared(count, batch) for count in counts) for name, counts in graph.positions.items()}
    return {
        name: replace(
            layer,
            norm_after=norms.get(name),
            norm_frozen=name in norms and norms[name] not in training,
            norm_unsure=name in norms and layer.out_features in graph.idle_norms,
            in_positions=positions.get(name, none)[0],
            out_positions=positions.get(name, none)[1],
            activation=layer.activation or " ".join(graph.reads.get(name, ())) or None,
        )
        for name, layer in layers.items()
    }


def _shared(count: int, batch: int) -> float:
    """The positions of one sample: a fraction of one where the first dimension counts something else than rows.

    >>> _shared(64, 16), _shared(8, 16)
    (4, 0.5)
    """
    return count / batch if count % batch else count // batch
