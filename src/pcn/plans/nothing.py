"""A plan that changes no layer: nobody asks for one, so whoever gets one is told why."""

from __future__ import annotations

from pcn.plans.plan import Plan
from pcn.warn import warn


def warn_of_nothing(plan: Plan, who: str) -> None:
    """Warn where a plan changes no layer, with the reasons of all."""
    if not plan.changes_something:
        reasons = sorted({layer.reason for layer in plan.layers.values() if layer.reason})
        warn(f"{who} changes no layer: {'; '.join(reasons) or 'there is none'}")
