"""Seeing the model's graph: which channels belong together, and why some must stay."""

from pcn.graph.channels import ChannelGraph, check_graph, trace
from pcn.graph.check import check_couplings

__all__ = ["ChannelGraph", "check_couplings", "check_graph", "trace"]
