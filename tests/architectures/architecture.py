"""What an architecture is here: a way to build a small model with random weights, and a batch for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]

VOCABULARY, TOKENS, SAMPLES = 50, 7, 3


@dataclass(frozen=True)
class Architecture:
    """One model; ``prunes`` says whether asking for half of the outputs finds something to drop."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Batch]
    prunes: bool = True

    def build(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """Build the model in eval mode, the same weights every time."""
        torch.manual_seed(0)
        model = self.make()
        shake_(model)
        calibrate_(model, self.inputs())
        return model.to(dtype).eval()

    def batch(self, dtype: torch.dtype = torch.float64, seed: int = 1) -> Batch:
        torch.manual_seed(seed)
        return {key: t.to(dtype) if t.is_floating_point() else t for key, t in self.inputs().items()}

    def __str__(self) -> str:
        return self.name


@torch.no_grad()
def shake_(model: nn.Module) -> None:
    """Move all parameters away from where they start: a fresh norm or a zero bias tests little."""
    for parameter in model.parameters():
        fan_in = 25 if parameter.ndim < 2 else parameter[0].numel()
        parameter.add_(torch.randn_like(parameter), alpha=fan_in**-0.5)


@torch.no_grad()
def calibrate_(model: nn.Module, batch: Batch) -> None:
    """Let batch norms measure a batch, as training would: with other statistics a deep network forgets its input."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    if norms:
        model.train()(**batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def hugging_face(model: str, **settings: Any) -> Callable[[], nn.Module]:
    """Return how to build a model of transformers from its settings; the import is put off until then."""

    def make() -> nn.Module:
        import transformers

        logging.getLogger("transformers").setLevel(logging.ERROR)
        kind = getattr(transformers, model)
        made: nn.Module = kind._from_config(kind.config_class(**settings))
        return made

    return make


def images(size: int = 32, name: str = "pixel_values") -> Callable[[], Batch]:
    return lambda: {name: torch.randn(SAMPLES, 3, size, size)}


def tokens(*names: str) -> Callable[[], Batch]:
    return lambda: {name: torch.randint(3, VOCABULARY, (SAMPLES, TOKENS)) for name in names or ("input_ids",)}


def noise(name: str, *shape: int) -> Callable[[], Batch]:
    return lambda: {name: torch.randn(SAMPLES, *shape)}


def both(first: Callable[[], Batch], second: Callable[[], Batch]) -> Callable[[], Batch]:
    return lambda: first() | second()
