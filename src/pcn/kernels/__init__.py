"""Batch norm, ReLU and projection in one pass: operators with Triton kernels, specified in plain PyTorch."""

from pcn.kernels.launch import tuning
from pcn.kernels.ops import add_moments, batch_moments, norm_project, norm_project_backward, project

__all__ = ["add_moments", "batch_moments", "norm_project", "norm_project_backward", "project", "tuning"]
