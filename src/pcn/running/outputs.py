"""What a classifier puts out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pcn.errors import ConfigError


def called_logits(output: Any) -> Any:
    """What a model's output calls its logits, as those of transformers' models do, or else the output itself.

    >>> called_logits({"loss": 0.5, "logits": [1.0, 2.0]}), called_logits([1.0, 2.0])
    ([1.0, 2.0], [1.0, 2.0])
    """
    return output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)


def logits_of(output: Any, instead: str) -> Tensor:
    """A classifier's logits, of two classes or more; where there are none, ``instead`` is what a person should give."""
    found = called_logits(output)
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.dim() < 2:
        shape = f" of shape {tuple(found.shape)}" if isinstance(found, Tensor) else ""
        raise ConfigError(f"the model puts out {type(output).__name__}{shape}, which holds no logits: give {instead}")
    if found.dim() > 3 or found.shape[-1] < 2:
        raise ConfigError(
            f"the model puts out shape {tuple(found.shape)}: not the logits of two classes or more for each sample or "
            f"token; give {instead}"
        )
    return found
