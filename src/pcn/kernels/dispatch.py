"""Which rows a kernel takes: those on a GPU, in fp32, bf16 or fp16; with Triton's interpreter those on the CPU too.

What is decided by sizes alone is here as well, where it can be read without Triton.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Directions of a basis by which a gradient is multiplied once, and written, not in both backward passes.
WRITTEN_FROM = 256
KERNELS = True  # set to False, plain PyTorch runs everywhere


def uses_kernel(rows: Tensor) -> bool:
    """Whether these rows are for a kernel; plain PyTorch takes the others."""
    return (
        KERNELS
        and HAS_TRITON
        and rows.dtype in DTYPES
        and (rows.is_cuda or (INTERPRETED and rows.device.type == "cpu"))
    )
