"""Optimizers and learning-rate schedules by name."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from pcn.training.settings import Settings

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)  # the first: batch and instance norm


def make_optimizer(model: nn.Module, settings: Settings, *, graphed: bool = False) -> Optimizer:
    """Make the optimizer that is asked for; with ``graphed`` its rate is a tensor that a captured graph reads."""
    groups = _groups(model, settings)
    rate: Any = settings.learning_rate
    if graphed:
        rate = torch.tensor(rate, device=next(model.parameters()).device)
    if settings.optimizer == "sgd":
        if settings.decoupled_decay:
            _decouple_(groups)
        made = SGD(groups, lr=rate, momentum=settings.momentum, nesterov=settings.nesterov, fused=True)
        if settings.decoupled_decay:
            made.register_step_pre_hook(decay_)
        return made
    kind = AdamW if settings.optimizer == "adamw" else Adam
    return kind(groups, lr=rate, betas=settings.betas, eps=settings.epsilon, fused=True, capturable=graphed)


def _groups(model: nn.Module, settings: Settings) -> list[dict[str, Any]]:
    """One group, or two where norms are not decayed."""
    parameters, decay = list(model.parameters()), settings.weight_decay
    if not decay or settings.decay_norms:
        return [{"params": parameters, "weight_decay": decay}]
    norms = {id(p) for module in model.modules() if isinstance(module, NORMS) for p in module.parameters()}
    return [
        {"params": [p for p in parameters if id(p) not in norms], "weight_decay": decay},
        {"params": [p for p in parameters if id(p) in norms], "weight_decay": 0.0},
    ]


def _decouple_(groups: list[dict[str, Any]]) -> None:
    """Keep the decay out of SGD's own hands, which would add it to the gradient."""
    for group in groups:
        group["decoupled_decay"], group["weight_decay"] = group["weight_decay"], 0.0


@torch.no_grad()
def decay_(optimizer: Optimizer, *_: Any) -> None:
    """Before a step, shrink weights with a decoupled decay by rate x decay, of which the momentum knows nothing."""
    for group in optimizer.param_groups:
        moved = [parameter for parameter in group["params"] if parameter.grad is not None]
        if moved and group.get("decoupled_decay"):
            torch._foreach_mul_(moved, 1 - group["lr"] * group["decoupled_decay"])


def learning_rate(settings: Settings, epochs_done: float) -> float:
    """The rate after so many epochs, which may be a fraction: a function of nothing else, so there is no state to lose.

    >>> settings = Settings(epochs=10, learning_rate=1.0, schedule="drops", drops=(5, 8), warmup_epochs=2)
    >>> [learning_rate(settings, done) for done in (0, 1, 2, 5, 9.5)]
    [0.0, 0.5, 1.0, 0.1, 0.01]
    """
    rate = settings.learning_rate
    if epochs_done < settings.warmup_epochs:
        factor = settings.warmup_factor
        return rate * (epochs_done / settings.warmup_epochs if factor is None else factor)
    if settings.schedule == "drops":
        rate *= settings.drop_factor ** sum(epochs_done >= drop for drop in settings.drops)
        return float(f"{rate:.12g}")
    if settings.schedule == "cosine":
        left = (epochs_done - settings.warmup_epochs) / max(settings.epochs - settings.warmup_epochs, 1e-9)
        return rate * (1 + math.cos(math.pi * min(left, 1))) / 2
    return rate


def set_learning_rate_(optimizer: Optimizer, rate: float) -> None:
    """Change the rate of every group, in place where a graph reads it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
