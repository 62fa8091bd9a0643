"""Whether torch multiplies in another dtype than it is given, and products for which it must not."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

# Asked once: torch.compile cannot trace the question in every release that we support.
AUTOCAST_DEVICES = frozenset(d for d in ("cpu", "cuda", "xpu", "mps", "hpu") if torch.amp.is_autocast_available(d))


def autocasts(device: str) -> bool:
    """Whether products on a kind of device are autocast here."""
    return device in AUTOCAST_DEVICES and torch.is_autocast_enabled(device)


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Have products in the dtype that is given; nothing is entered where they are anyway, which exporters like best."""
    return torch.autocast(device, enabled=False) if autocasts(device) else nullcontext()
