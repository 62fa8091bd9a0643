"""Seeing the model's graph: which channels belong together, and why some must stay."""

from pcn.graph.channels import ChannelGraph, check_couplings, trace

__all__ = ["ChannelGraph", "check_couplings", "trace"]
