"""Keeping to oneself what PyTorch prints about an error that is dealt with."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from printing the traceback of an error that is raised anyway, and warnings about a mere copy."""
    noisy = ("_subclasses.fake_tensor", "fx.experimental.symbolic_shapes")
    logs = [logging.getLogger(f"torch.{name}") for name in noisy]
    before = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        # torch.export prints the graph of a failed capture.
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, disabled in zip(logs, before, strict=True):
            log.disabled = disabled
