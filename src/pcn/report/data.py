"""Everything that a report shows, as plain data: from a run's folder, or from statistics and a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pcn.config import USUAL_RANK, PCNConfig
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import Plan
from pcn.rank_rules import ExplainedVariance, Rank, Threshold
from pcn.report import headline
from pcn.report.history import history_of
from pcn.report.layers import layer_rows
from pcn.report.toml import same_run, toml_value
from pcn.statistics import Statistics
from pcn.training.spectra import Spectra, spectra_of

Report = dict[str, Any]
# Settings of pcn train, too.
HOW = ("order", "basis", "precondition", "sized_for", "centred", "train_basis", "keep_dropped")
NOTHING: Spectra = {"layers": {}, "left_alone": {}, "activations": {}, "epoch": None}
NO_SPECTRA = "No spectra were kept, so there is nothing to try: train with measure_every of at least 1."


def of(
    stats: Statistics,
    plan: Plan | None = None,
    config: PCNConfig | None = None,
    *,
    title: str = "A network",
    metrics: Sequence[dict[str, Any]] = (),
    test_accuracy: float | None = None,
) -> Report:
    """The report of statistics and the plan that was made from them with a configuration.

    ``metrics`` are the records of a training run, as :class:`pcn.training.Trainer` tells them, if there are any.
    """
    history = history_of(metrics)
    return _report(
        title=title,
        facts=_facts(history) if metrics else ["statistics and a plan" if plan else "statistics; nothing is planned"],
        spectra=spectra_of(stats, plan, config=config),
        plan=plan,
        config=_as_chosen(config or PCNConfig(), plan),
        headline=headline.of_run(plan, metrics, None) if metrics else headline.of_plan(plan),
        history=history,
        test_accuracy=test_accuracy,
    )


def of_run(folder: Path | str) -> Report:
    """The report of a run's folder, be the run finished or not."""
    from pcn.report.run_files import read_run
    from pcn.training.requests import pcn_config
    from pcn.training.switch_time import parse_switch

    run = read_run(Path(folder))
    switches = parse_switch(run.settings.switch_at) is not None
    config = pcn_config(run.settings) if switches else PCNConfig()
    history = history_of(run.metrics)
    plan = run.plan if history["switch"] is not None else None  # the file may be ahead of a run that was killed
    config = _as_chosen(config, plan)
    return _report(
        title=f"{_short(run.settings.model)} on {_short(run.settings.data)}",
        facts=[*_facts(history, None if run.result else run.settings.epochs), f"seed {run.settings.seed}"],
        spectra=run.spectra or NOTHING,
        plan=plan,
        config=config,
        headline=headline.of_run(plan, run.metrics, run.result),
        history=history,
        toml=same_run(replace(run.settings, precondition=config.precondition, sized_for=config.sized_for)),
        test_accuracy=(run.result or {}).get("test_accuracy"),
    )


def _report(
    *,
    title: str,
    facts: list[str],
    spectra: Spectra,
    plan: Plan | None,
    config: PCNConfig,
    headline: list[dict[str, Any]],
    history: dict[str, Any],
    toml: str | None = None,
    test_accuracy: float | None = None,
) -> Report:
    from pcn import __version__

    how = _how(config)
    if toml is None:
        lines = {"switch_at": _when(history), **how}
        toml = "".join(f"{name} = {toml_value(value)}\n" for name, value in lines.items())
    return {
        "version": __version__,
        "title": title,
        "facts": facts,
        "headline": headline,
        "unspent": None if plan is None else plan.unspent,
        "accuracy": _accuracy(history, test_accuracy),
        "history": history,
        "layers": layer_rows(spectra, plan, config),
        "activations": spectra["activations"],
        "spectra_epoch": spectra["epoch"],
        "left_alone": dict(spectra["left_alone"] if plan is None else plan.left_alone),
        "planned": plan is not None,
        "rule": _rule(config.rank),
        "config": {
            "exclude": list(config.exclude),
            "skip_larger": config.skip_larger,
            "multiple_of": config.multiple_of,
            "kernel_rank": config.kernel_rank,
            "how": how,
        },
        "toml": toml,
        "missing": None if spectra["activations"] else NO_SPECTRA,
    }


def _how(config: PCNConfig) -> dict[str, Any]:
    """What a configuration says of how layers are changed, whatever their ranks, where it is not the default."""
    return {name: value for name in HOW if (value := getattr(config, name)) != getattr(PCNConfig(), name)}


def _as_chosen(config: PCNConfig, plan: Plan | None) -> PCNConfig:
    """The configuration with what a budget chose by itself, and ranks that are given would not, if all layers agree."""
    return replace(
        config, precondition=_chosen("precondition", config, plan), sized_for=_chosen("sized_for", config, plan)
    )


def _chosen(name: str, config: PCNConfig, plan: Plan | None) -> Any:
    asked = getattr(config, name)
    found = set() if plan is None else {getattr(layer, name) for layer in plan.transformed}
    agreed = asked is None and len(found) == 1 and getattr(LayerPlan, name) not in found  # which is the class's default
    return found.pop() if agreed else asked


def _short(name: str) -> str:
    """The class of ``package.module:Class``; a function's name says little without its module's."""
    module, _, made = name.rpartition(":")
    return made if made[:1].isupper() or not module else f"{module.rpartition('.')[2]}:{made}"


def _rule(rank: Rank | None) -> dict[str, Any]:
    """Where the slider starts: at the configuration's own rule, if it is one that the slider knows."""
    if isinstance(rank, Threshold) and rank.variance > 0:
        return {"mode": "variance", "value": rank.variance}
    rule = rank if isinstance(rank, ExplainedVariance) else USUAL_RANK
    return {"mode": "share", "value": rule.share}


def _facts(history: dict[str, Any], unfinished: int | None = None) -> list[str]:
    """How far a run has come; ``unfinished`` is the number of epochs that it still wants to come to."""
    done, switch = history["epochs"][-1][0] if history["epochs"] else 0, history["switch"]
    return [
        f"{done} epochs" if unfinished is None else f"unfinished: {done} of {unfinished} epochs",
        "not switched" if switch is None else _switched(switch),
    ]


def _switched(switch: dict[str, Any]) -> str:
    return f"switched after epoch {switch['at']:.4g}" if switch["step"] else "switched before any training"


def _when(history: dict[str, Any]) -> str:
    """When the switch came, as a setting of ``pcn train``; where there was none, the paper's rule."""
    switch = history["switch"]
    if switch is None:
        return "accuracy slows"
    return f"{switch['at']:g}" if switch["at"] == round(switch["at"]) else f"step {switch['step']}"


def _accuracy(history: dict[str, Any], test: float | None) -> dict[str, Any]:
    epochs, switch = history["epochs"], history["switch"] or {}
    return {
        "test": test,
        "last": epochs[-1][1] if epochs else None,
        "before": switch.get("before"),
        "after": switch.get("after"),
    }
