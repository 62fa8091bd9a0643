"""Warnings that point at the line which the user wrote."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch

INSIDE = (f"{Path(__file__).parent}{os.sep}", f"{Path(torch.__file__).parent}{os.sep}")


def warn(text: str) -> None:
    """Warn as of the nearest line, among those that led here, that is neither in this package nor in PyTorch."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
