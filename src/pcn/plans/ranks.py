"""Giving every layer its rank, or the reason why it keeps its input as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from pcn.config import LayerRule, PCNConfig
from pcn.errors import ConfigError, StatisticsError
from pcn.layers import canonical_weight, groups_of, layer_type
from pcn.plans.layer_plan import NO_RANK, LayerPlan
from pcn.rank_rules import ExplainedVariance, Fixed, RankRule, SpectrumLike, Threshold, as_rank_rule
from pcn.statistics import Spectrum, Statistics, forms

CENTRED = "those of a layer that is centred"
CONSTANT = 1e-6  # an input that varies by less than this much of its mean is taken not to vary


def rank_layers(
    found: list[tuple[str, nn.Module, str | None]],
    stats: Statistics | None,
    config: PCNConfig,
    read: Mapping[str, str],
) -> tuple[dict[str, LayerPlan], dict[str, str]]:
    """Give every layer its rank or the reason why it has none; return these, and the reasons of other modules.

    ``read`` names the layers whose weights somebody uses without calling them, with who does.
    """
    layers: dict[str, LayerPlan] = {}
    left_alone: dict[str, str] = {}
    counted: set[int] = set()  # weights, by their ids
    for name, module, reason in found:
        if reason is not None and not _has_sizes(module):
            left_alone[name] = _refuse_named(name, config, reason)
            continue
        weight = module.weight
        layer = _describe(name, module, tied=id(weight) in counted)
        counted.add(id(weight))
        reason = _excluded(name, config) or reason or unmeasured(name, stats) or _directly_read(name, read)
        layers[name] = _with_rank(layer, stats, config, reason)
    return layers, left_alone


def stats_for(config: PCNConfig, stats: Statistics) -> Statistics:
    """The statistics with the inputs of layers that are not to be centred taken as they are, their mean in them."""
    stats.check_about_the_mean(filter(config.centres, stats.layers), CENTRED)
    return stats.about_zero(name for name in stats.layers if not config.centres(name))


def _has_sizes(module: nn.Module) -> bool:
    """Whether a module is a layer with a weight of its own, be it one that must be left alone."""
    if layer_type(module) is None:
        return False  # a scripted module does not even say what parameters it has
    weight = module._parameters.get("weight")
    return weight is not None and not isinstance(weight, nn.parameter.UninitializedParameter)


def _refuse_named(name: str, config: PCNConfig, reason: str) -> str:
    rule, exact = config.rule_for(name)
    if exact and rule != LayerRule() and config.excludes(name) is None:
        raise ConfigError(f"{name!r} has a rule of its own but must be left alone: {reason}")
    return reason


def _describe(name: str, module: nn.Module, *, tied: bool) -> LayerPlan:
    kind = layer_type(module)
    weight = canonical_weight(module)
    assert kind is not None
    groups, bias = groups_of(module), module.bias
    apart = isinstance(bias, Tensor) and bias.requires_grad != weight.requires_grad
    return LayerPlan(
        name,
        kind.kind,
        weight.shape[1] * groups,
        weight.shape[0],
        groups,
        tuple(weight.shape[2:]),
        bias is not None,
        not weight.requires_grad,
        bias_frozen=weight.requires_grad if apart else None,
        tied=tied,
        stride=math.prod(getattr(module, "stride", ())),
    )


def unmeasured(name: str, stats: Statistics | None) -> str | None:
    """Why statistics do not cover a layer; None where they do, or where there are none."""
    if stats is None or name in stats.layers:
        return None
    return stats.left_alone.get(name, "the statistics do not cover it")


def _directly_read(name: str, read: Mapping[str, str]) -> str | None:
    return f"{read[name]!r} uses its weight without calling it" if name in read else None


def _excluded(name: str, config: PCNConfig) -> str | None:
    pattern = config.excludes(name)
    return None if pattern is None else f"excluded by {pattern!r}"


def _with_rank(layer: LayerPlan, stats: Statistics | None, config: PCNConfig, reason: str | None) -> LayerPlan:
    rule, exact = config.rule_for(layer.name)
    if reason is not None and exact and config.excludes(layer.name) is None and rule.transforms:
        raise ConfigError(f"{layer.name!r} is asked for a rank but must be left alone: {reason}")
    layer = replace(
        layer,
        order=rule.order or config.order,
        basis=config.basis,
        precondition=float((config.precondition if rule.precondition is None else rule.precondition) or 0.0),
        sized_for=rule.sized_for or config.sized_for or "sgd",
        centred=config.centres(layer.name),
        train_basis=config.train_basis,
        keep_dropped=config.keep_dropped,
    )
    if reason is not None or not rule.transforms:
        return replace(layer, reason=reason or NO_RANK)
    planned = (_with_outputs if rule.rank is None else _with_inputs)(layer, rule, config, stats)
    if not planned.transformed:
        return planned
    if config.skip_larger and not exact and planned.is_larger:
        made = f"rank {planned.rank} of {planned.in_features // planned.groups}"
        if planned.rank is None:
            made = f"output rank {planned.output_rank} of {planned.out_features // planned.groups}"
        why = f"{made} would not make it smaller, the basis included (skip_larger=False insists)"
        return replace(layer, reason=why)
    return replace(planned, activation=None if stats is None else stats.layers[layer.name])


def _with_outputs(layer: LayerPlan, rule: LayerRule, config: PCNConfig, stats: Statistics | None) -> LayerPlan:
    """A layer that reads its input as it is, and trains fewer outputs behind a basis."""
    assert rule.output_rank is not None
    count = _output_rank(layer, rule.output_rank, config)
    if count is None:
        return replace(layer, reason=f"{NO_RANK}, and all of its outputs are to be trained")
    planned = replace(layer, reason=NO_RANK, output_rank=count)
    return planned if stats is None else replace(planned, note=_constant(layer.name, stats) or _made_up(planned, stats))


def _with_inputs(layer: LayerPlan, rule: LayerRule, config: PCNConfig, stats: Statistics | None) -> LayerPlan:
    """A layer that reads its input along directions, and may train fewer outputs too."""
    assert rule.rank is not None
    width = layer.in_features // layer.groups
    wish = as_rank_rule(rule.rank)
    if isinstance(wish, Fixed) and wish.count > width and not config.fixes(layer.name):
        return replace(layer, reason=f"its input has {width} dimensions, fewer than the rank {wish.count}")
    rank, note = _rank(layer.name, wish, _spectrum(layer, width, stats), config.multiple_of)
    if layer.order == "kept_block" and (layer.basis != "pca" or layer.precondition):
        asked = f"basis={layer.basis!r}" if layer.basis != "pca" else f"precondition={layer.precondition:g}"
        raise ConfigError(
            f"{layer.name!r}: order 'kept_block' makes PCA bases of its own, which cannot go with {asked}: leave that "
            "out, or choose another order"
        )
    if layer.basis != "pca" and width > forms.WIDEST_BASIS:
        raise ConfigError(
            f"{layer.name!r}: basis={layer.basis!r} needs the whole covariance of its {width:,} inputs, and goes up to "
            f"{forms.WIDEST_BASIS:,}: exclude it, or choose 'pca'"
        )
    if stats is not None and config.needs_gradients:
        stats.check_gradients(layer.name)
    patterns = _kernel_rank(layer, rule, config, stats)
    outputs = None if rule.output_rank is None else _output_rank(layer, rule.output_rank, config)
    planned = replace(layer, rank=rank, output_rank=outputs, kernel_rank=patterns)
    if note is None and stats is not None:
        note = _constant(layer.name, stats) or few_samples(planned, stats)
    return replace(planned, note=note)


def _constant(name: str, stats: Statistics) -> str | None:
    """Say where a layer's input was always the same, but for rounding: then no direction of it is known."""
    variance, mean = float(stats.spectrum(name).total_variance.sum()), stats.mean(name)
    if variance > CONSTANT**2 * float(mean.square().sum()):
        return None
    return "its input is the same in all that was looked at, so its directions are made up: look at other batches"


def few_samples(layer: LayerPlan, stats: Statistics) -> str | None:
    """Say where a layer's input was seen too few times to know all its directions, or even those that are kept."""
    shown, width = stats.shown(layer.name), layer.in_features // layer.groups
    if shown >= width:
        return None
    seen = f"{stats.samples(layer.name)} samples of {width} inputs"
    return _made_up(layer, stats) or f"{seen}: more samples may show more directions"


def _made_up(layer: LayerPlan, stats: Statistics) -> str | None:
    """Say where a basis holds directions that no sample has shown."""
    shown, width = stats.shown(layer.name), layer.in_features // layer.groups
    if not is_made_up(layer, shown):
        return None
    seen = f"{stats.samples(layer.name)} samples of {width} inputs"
    asked = layer.output_rank if layer.rank is None else layer.rank
    return f"{seen} show {shown} directions, and the others of {asked} are made up"


def is_made_up(layer: LayerPlan, shown: int) -> bool:
    """Whether a basis holds more directions than samples have shown, while others are lost.

    Of outputs they show as many in every tap.
    """
    width = layer.in_features // layer.groups
    if layer.basis == "random" or shown >= width:
        return False
    if layer.rank is None:
        return layer.output_rank is not None and shown * layer.taps < layer.output_rank
    return layer.rank < width and shown < layer.rank


def _kernel_rank(layer: LayerPlan, rule: LayerRule, config: PCNConfig, stats: Statistics | None) -> int | None:
    """The number of patterns of taps; None where every tap is as good."""
    if rule.kernel_rank is not None and layer.name in config.layers and layer.taps < max(2, rule.kernel_rank):
        taps = "a single tap" if layer.taps == 1 else f"{layer.taps} taps"
        raise ConfigError(f"{layer.name!r} is asked for kernel_rank {rule.kernel_rank}, but has {taps}")
    wish = config.patterns(layer.name, layer.taps)
    if wish is None:
        return None
    if stats is not None:
        check_batch(layer.name, f"kernel_rank={wish}", stats)
    if layer.order == "kept_block":
        raise ConfigError(
            f"{layer.name!r}: order 'kept_block' makes PCA bases of its own, which cannot go with kernel_rank={wish}: "
            "leave that out, or choose another order"
        )
    return wish


def check_batch(name: str, asked: str, stats: Statistics) -> None:
    """Raise where statistics hold no batch on which a layer's patterns of taps, which were asked for, are measured."""
    if stats.example is None:
        raise StatisticsError(
            f"{name!r}: patterns of taps ({asked}) are measured on a batch, and these statistics hold none: analyze in "
            "the same process; a file holds one unless the model was called by a function of yours"
        )


def _output_rank(layer: LayerPlan, wish: int | float, config: PCNConfig) -> int | None:
    """The number of outputs that are trained, in each group; None where that would be all of them."""
    width = layer.out_features // layer.groups
    if isinstance(wish, int) and wish > width and layer.name in config.layers:
        raise ConfigError(
            f"{layer.name!r} is asked for output_rank {wish}, but has {width} outputs: give at most these"
        )
    return trained_outputs(wish, width, config.multiple_of)


def trained_outputs(wish: int | float, width: int, multiple_of: int) -> int | None:
    """Of so many outputs the number that are trained; None where that would be all of them.

    >>> trained_outputs(0.5, 10, 1), trained_outputs(3, 10, 4), trained_outputs(9, 10, 4)
    (5, 4, None)
    """
    count = -(-as_rank_rule(wish).rank(_WidthOnly(width)) // multiple_of) * multiple_of
    return count if count < width else None


def _spectrum(layer: LayerPlan, width: int, stats: Statistics | None) -> SpectrumLike:
    return _WidthOnly(width) if stats is None else stats.spectrum(layer.name)


def _rank(name: str, rule: RankRule, spectrum: SpectrumLike, multiple_of: int) -> tuple[int, str | None]:
    rank = rule.rank(spectrum)
    if isinstance(rank, bool) or not isinstance(rank, int):
        raise ConfigError(f"{name!r}: {rule!r} gives the rank {rank!r}, which is not a whole number")
    if not 1 <= rank <= spectrum.width:
        raise ConfigError(
            f"{name!r} is asked for rank {rank}, but its input has {spectrum.width} dimensions; "
            f"give 1 to {spectrum.width} or a fraction, or exclude it"
        )
    return min(-(-rank // multiple_of) * multiple_of, spectrum.width), _note(rule, spectrum)


def _note(rule: RankRule, spectrum: SpectrumLike) -> str | None:
    """Say when a rule finds nothing to keep: the spectrum counts one direction all the same."""
    if isinstance(spectrum, Spectrum) and isinstance(rule, Threshold | ExplainedVariance):
        variance = rule.variance if isinstance(rule, Threshold) else 0.0
        if spectrum.largest() <= variance:
            return f"no direction has a variance above {variance:g}: one is kept"
    return None


@dataclass(frozen=True)
class _WidthOnly:
    """Stands for a spectrum where no activation was measured: rules that need variances cannot be answered."""

    width: int

    def count_above(self, variance: float) -> int:
        raise ConfigError("a threshold on variance needs statistics; without them give a rank or a fraction")

    def count_explaining(self, share: float) -> int:
        raise ConfigError("a share of variance needs statistics; without them give a rank or a fraction")
