"""What a classifier puts out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pcn.errors import ConfigError


def logits_of(output: Any, instead: str) -> Tensor:
    """A classifier's logits: its output, or what it calls so, as the models of transformers do."""
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.dim() < 2:
        raise ConfigError(
            f"the model puts out {type(output).__name__}, which holds no logits: give {instead}=... yourself"
        )
    if found.dim() > 3 or found.shape[-1] < 2:
        raise ConfigError(
            f"the model puts out shape {tuple(found.shape)}: not the logits of two classes or more for each sample or "
            f"token; give {instead}=... yourself"
        )
    return found
