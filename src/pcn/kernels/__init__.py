"""Batch norm, ReLU and projection in one pass, and narrow convolutions: operators with Triton kernels.

What each computes is specified in plain PyTorch.
"""

from pcn.kernels.conv_ops import narrow_conv, narrow_conv_input, narrow_conv_weight
from pcn.kernels.launch import tuning
from pcn.kernels.ops import add_moments, batch_moments, norm_project, norm_project_backward, project
from pcn.kernels.pointwise_ops import pointwise_conv, pointwise_conv_input

__all__ = [
    "add_moments",
    "batch_moments",
    "narrow_conv",
    "narrow_conv_input",
    "narrow_conv_weight",
    "norm_project",
    "norm_project_backward",
    "pointwise_conv",
    "pointwise_conv_input",
    "project",
    "tuning",
]
