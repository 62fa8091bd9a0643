"""The switch inside a training loop, and when it comes."""

from pcn.switching.batch_norm import recalibrate_
from pcn.switching.dimensions import effective_dimensions, log_dimensions
from pcn.switching.rules import AccuracySlows, AfterEpoch, AfterStep, Progress, SubspacesSettle, SwitchRule
from pcn.switching.switch import Switch

__all__ = [
    "AccuracySlows",
    "AfterEpoch",
    "AfterStep",
    "Progress",
    "SubspacesSettle",
    "Switch",
    "SwitchRule",
    "effective_dimensions",
    "log_dimensions",
    "recalibrate_",
]
