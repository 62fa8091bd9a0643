"""The public names: what stands here can be had from ``pcn`` itself."""

from pcn.compressing import compress_
from pcn.config import L1Threshold, LayerRule, PCNConfig
from pcn.errors import (
    ConfigError,
    CouplingError,
    FileError,
    PCNError,
    PlanError,
    StatisticsError,
    TraceError,
)
from pcn.fusion import choose_forms, fuse_, unfuse_
from pcn.graph import ChannelGraph, trace
from pcn.planner import Divergence, Evenly, Hedged, Measured, Response, Taylor
from pcn.planner.budget import Budget
from pcn.planner.measuring import measure_costs
from pcn.planner.within import fit_budget
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.making import make_plan
from pcn.plans.plan import Plan, get_plan
from pcn.rank_rules import ExplainedVariance, Fixed, Fraction, RankRule, Threshold
from pcn.rewriting.fold import fold_
from pcn.rewriting.plain import to_plain
from pcn.saving.model_folder import load, save
from pcn.statistics import Statistics, analyze
from pcn.switching import AccuracySlows, AfterEpoch, AfterStep, SubspacesSettle, Switch, recalibrate_

__all__ = [
    "AccuracySlows",
    "AfterEpoch",
    "AfterStep",
    "Budget",
    "ChannelGraph",
    "ConfigError",
    "CouplingError",
    "Divergence",
    "Evenly",
    "ExplainedVariance",
    "FileError",
    "Fixed",
    "Fraction",
    "Hedged",
    "L1Threshold",
    "LayerPlan",
    "LayerRule",
    "Measured",
    "PCNConfig",
    "PCNError",
    "Plan",
    "PlanError",
    "RankRule",
    "Response",
    "Statistics",
    "StatisticsError",
    "SubspacesSettle",
    "Switch",
    "Taylor",
    "Threshold",
    "TraceError",
    "analyze",
    "choose_forms",
    "compress_",
    "fit_budget",
    "fold_",
    "fuse_",
    "get_plan",
    "load",
    "make_plan",
    "measure_costs",
    "recalibrate_",
    "save",
    "to_plain",
    "trace",
    "unfuse_",
]
