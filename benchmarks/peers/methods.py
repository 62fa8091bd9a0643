"""The methods that are compared: what each changes in its parent's settings, and the switches that are not ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pcn.training import Settings
from peers.one_run import UNWATCHED
from peers.order import METHODS, Run
from peers.parents import PARENTS, Point
from peers.plans import plan_name, planner_run
from peers.pruning import TorchPruning
from peers.svd import QuarterRank, StableRank
from peers.switches import PeerSwitch

NEEDS_PLAN = ("narrow-planned", "pcn-from-scratch")
SWITCHED_BY_US = (
    *("pcn-paper", "pcn-planner", "pcn-planner-random-basis", "pcn-planner-four-patterns", "pcn-planner-every-tap"),
    "pcn-planner-sized",
)
SWITCHES: dict[str, type[PeerSwitch]] = {
    "svd-quarter": QuarterRank,
    "svd-stable-rank": StableRank,
    "torch-pruning": TorchPruning,
}

PACKAGES = {"torch-pruning": "torch_pruning"}  # what methods import that does not come with the library


def missing_package(method: str) -> str | None:
    """The package that a method needs and that is not there, by the name that pip knows it by."""
    package = PACKAGES.get(method)
    return package.replace("_", "-") if package is not None and find_spec(package) is None else None


def forks(method: str) -> bool:
    """Whether a method's first epochs are its parent's."""
    return method == "parent" or switches(method)


def switches(method: str) -> bool:
    """Whether a method makes its network small in the middle of training."""
    return method in (*SWITCHED_BY_US, *SWITCHES)


def make_switch(method: str, target: int) -> Callable[..., PeerSwitch] | None:
    """What makes a trainer's switch, for methods that are not ours."""
    return partial(SWITCHES[method], target=target) if method in SWITCHES else None


def settings(run: Run, point: Point, *, data: Path, plans: Path) -> Settings:
    """The parent's recipe at a point of the grid, with a method's changes."""
    base = PARENTS[run.parent].recipe(run.seed, run.epochs, data)
    return replace(base, **point._asdict(), **UNWATCHED, **changes(run, base, plans))


def changes(run: Run, base: Settings, plans: Path) -> dict[str, Any]:
    """What a method changes in its parent's settings."""
    parent, target = PARENTS[run.parent], run.target
    of_parent = {"parent": base.model, "options": base.model_options}
    planned = {**of_parent, "plans": str(plans), "name": plan_name(planner_run(run))}
    switched = {"switch_at": str(parent.switch(base.epochs))}
    match run.method:
        case "parent":
            return {}
        case "narrow":
            return built("narrow", **of_parent, target=target)
        case "narrow-planned":
            return built("planned_widths", **planned)
        case "pcn-from-scratch":
            return built("planned", **planned)
        case "pcn-paper":
            return {**switched, **parent.paper[target], "carry_state": False}
        case "pcn-planner":
            return {**switched, "params": target, **parent.planner}
        case "pcn-planner-sized":
            return {**switched, "params": target, **parent.planner, "sized_for": "adam"}
        case "pcn-planner-at-once":
            return {"switch_at": "0", "params": target, **parent.planner}
        case "pcn-planner-four-patterns":
            return {**switched, "params": target, "kernel_rank": 4, "worth": "evenly", "exclude": ("conv1", "fc")}
        case "pcn-planner-every-tap":
            return {**switched, "params": target, "worth": "response", "patterns": False}
        case "pcn-planner-random-basis":
            return {**switched, "params": target, **parent.planner, "basis": "random"}
        case "svd-quarter" | "svd-stable-rank":
            return switched  # the method sets the optimizer up itself
        case "torch-pruning":
            return {**switched, "carry_state": False}
    raise ValueError(f"no method is called {run.method!r}; there are {', '.join(METHODS)}")


def built(factory: str, **options: Any) -> dict[str, Any]:
    return {"model": f"peers.networks:{factory}", "model_options": options}
