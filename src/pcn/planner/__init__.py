"""Choosing ranks for a budget: what each is worth, what it costs, and who gets the next one."""

from pcn.planner.divergence import Divergence, prediction_divergence
from pcn.planner.evenly import Evenly
from pcn.planner.hedged import Hedged
from pcn.planner.measured import LayerUsage, Measured
from pcn.planner.response import Response
from pcn.planner.taylor import Taylor
from pcn.planner.values import Values, Worth
from pcn.running.gradients import predicted_loss

__all__ = [
    "Divergence",
    "Evenly",
    "Hedged",
    "LayerUsage",
    "Measured",
    "Response",
    "Taylor",
    "Values",
    "Worth",
    "predicted_loss",
    "prediction_divergence",
]
