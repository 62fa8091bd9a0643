"""Layers that read their input in a small basis: drop-in replacements for Linear and Conv1d, Conv2d, Conv3d."""

from pcn.nn.base import PCModule, check_own_tensors
from pcn.nn.build import empty_like, from_layer, hand_on_, inherit_
from pcn.nn.conv import PCConv1d, PCConv2d, PCConv3d
from pcn.nn.linear import PCLinear

__all__ = [
    "PCConv1d",
    "PCConv2d",
    "PCConv3d",
    "PCLinear",
    "PCModule",
    "check_own_tensors",
    "empty_like",
    "from_layer",
    "hand_on_",
    "inherit_",
]
