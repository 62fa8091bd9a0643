"""The Plan: plain data that says what every layer keeps, and why the others are left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch import nn

from pcn.costs.usage import Expected
from pcn.errors import PlanError, suggest
from pcn.layers import unwrap
from pcn.plans.layer_plan import NO_RANK, LayerPlan
from pcn.running.refusals import check_changeable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pcn.graph import ChannelGraph
    from pcn.running.optimizers import Optimizers
    from pcn.statistics import Statistics


Form = Literal["fused", "factored", "folded"]  # how a principal component layer runs, see pcn.fusion.fuse_
FORMS: tuple[Form, ...] = get_args(Form)


@dataclass(frozen=True)
class Cut:
    """The indices kept of one dimension of a tensor, and its size before."""

    size: int
    kept: tuple[int, ...]


Slices = Mapping[str, Mapping[int, Cut]]


@dataclass(frozen=True)
class Plan:
    """What every layer keeps.

    ``slices`` lists, for every parameter and buffer that loses channels, the indices kept along each dimension;
    ``left_alone`` gives the reason for every other module with parameters; ``usage`` is what a training step takes
    before and after, where that was measured; ``forms`` remembers which form of each layer is fastest where
    (:func:`pcn.fusion.fastest_forms`); ``unspent`` says what is left of a budget that would have bought more, and why;
    ``whole`` is what a budget is about, as counted of the whole model before and after: trainable parameters
    (``"params"``), and where they are limited ``"stored"`` and ``"flops"``.
    """

    layers: dict[str, LayerPlan]
    slices: Slices = field(default_factory=dict)
    left_alone: dict[str, str] = field(default_factory=dict)
    usage: Expected | None = None
    forms: dict[str, dict[str, Form]] = field(default_factory=dict)  # where -> layer -> form
    unspent: str | None = None
    whole: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def transformed(self) -> list[LayerPlan]:
        return [layer for layer in self.layers.values() if layer.transformed]

    @property
    def changes_something(self) -> bool:
        """Whether a model that it was applied to is not the original any more."""
        return bool(self.slices) or any(layer.changed for layer in self.layers.values())

    @property
    def needs_gradients(self) -> bool:
        """Whether it is applied with statistics that come from ``analyze(..., gradients=True)``."""
        return any(layer.basis == "balanced" and layer.rank is not None for layer in self.transformed)

    @property
    def trainable_before(self) -> int:
        """Trainable parameters of the listed layers now; norms and embeddings are not counted here."""
        return sum(layer.trainable_before for layer in self.layers.values())

    @property
    def trainable_after(self) -> int:
        return sum(layer.trainable_after for layer in self.layers.values())

    def kept(self, tensor: str, dim: int) -> tuple[int, ...] | None:
        """The indices kept of a tensor along a dimension, or None for all."""
        cut = self.slices.get(tensor, {}).get(dim)
        return None if cut is None else cut.kept

    def with_rank(self, name: str, rank: int | None) -> Plan:
        """Return the plan with another rank for one layer, or with None for a layer that stays as it is."""
        if name not in self.layers:
            raise PlanError(f"the plan has no layer {name!r}{suggest(name, self.layers)}")
        layer = self.layers[name]
        width = (layer.kept_inputs if layer.order == "kept_block" else layer.in_features) // layer.groups
        if rank is not None and (type(rank) is not int or not 1 <= rank <= width):
            raise PlanError(f"{name!r} cannot have rank {rank!r}: give a whole number from 1 to {width}, or None")
        changed = replace(layer, rank=rank, reason=NO_RANK if rank is None else None, note=None)
        if rank is None:
            changed = replace(changed, output_rank=None, kernel_rank=None)
        return replace(self, layers={**self.layers, name: changed}, usage=None, forms={}, unspent=None, whole={})

    def apply_(
        self,
        model: nn.Module,
        stats: Statistics,
        *,
        optimizer: Optimizers = None,
        ema: nn.Module | None = None,
        strict: bool = False,
        check: bool = True,
    ) -> Plan:
        """Change the model in place to what the plan says, all or nothing, and return the plan.

        The optimizer, or each in a list of all that train the model, keeps its groups and gets the new parameters with
        their history; an averaged copy (``ema``) follows. That the state of optimizers other than SGD, Adam, AdamW and
        Muon starts afresh, or that a trainable parameter which is replaced is in none of them, is warned of, or refused
        when ``strict``.
        """
        from pcn.plans.fit import check_plan_fits, check_statistics
        from pcn.rewriting.bases import find_bases
        from pcn.rewriting.patterns import measure_taps, with_patterns
        from pcn.rewriting.surgery import apply_plan_

        check_changeable(model, optimizer)
        check_plan_fits(self, unwrap(model))
        check_statistics(stats, unwrap(model))
        example = stats.example if check else None
        bases = find_bases(self, stats, model)
        bases = with_patterns(self, bases, measure_taps(self, bases, unwrap(model), stats), unwrap(model))
        apply_plan_(self, model, bases, example=example, optimizer=optimizer, ema=ema, strict=strict)
        return self

    def reshape_(self, model: nn.Module) -> Plan:
        """Give the model the plan's architecture with fresh weights: to load others into it, or to train it anew."""
        from pcn.rewriting.surgery import reshape_

        reshape_(self, model)
        return self

    def suggest_widths(self, graph: ChannelGraph, *, step: int = 8) -> dict[str, int]:
        """Output channels, by layer, for a plain, narrower network of about the same size.

        ``graph`` is that of the model before the plan was applied (:func:`pcn.trace`). The numbers are multiples of
        ``step`` where layers are wide enough and the size can be met so.
        """
        from pcn.planner.widths import suggest_widths

        return suggest_widths(self, graph, step)

    def narrowed(self, graph: ChannelGraph, widths: Mapping[str, int]) -> Plan:
        """The plan of that plain network: ``reshape_`` cuts a newly built model to it, to be trained from scratch."""
        from pcn.planner.narrowing import narrowed

        return narrowed(self, graph, widths)

    def to_json(self) -> str:
        from pcn.plans.as_json import dumps

        return dumps(self)

    @staticmethod
    def from_json(text: str) -> Plan:
        from pcn.plans.as_json import loads

        return loads(text)

    def __str__(self) -> str:
        from pcn.plans.table import plan_table

        return plan_table(self)

    def _repr_html_(self) -> str:
        from pcn.display.html import plan_html

        return plan_html(self)

    def plot(self) -> Figure:
        """Draw what is kept of every layer with matplotlib."""
        from pcn.display.plots import plot_plan

        return plot_plan(self)


def get_plan(model: nn.Module) -> Plan | None:
    """Return the plan that was applied to a model, or None."""
    plan: Any = getattr(unwrap(model), "_pcn_plan", None)
    return plan if isinstance(plan, Plan) else None


def check_untransformed(model: nn.Module) -> None:
    """Raise when a plan has changed a model already."""
    plan = get_plan(model)
    if plan is not None and plan.changes_something:
        raise PlanError("this model has been transformed already; pcn.fold_(model) brings its plain layers back")


def set_plan_(model: nn.Module, plan: Plan | None) -> None:
    """Have a model carry a plan, through copies and pickles too, or none."""
    if plan is None:
        model.__dict__.pop("_pcn_plan", None)
    else:
        model.__dict__["_pcn_plan"] = plan
