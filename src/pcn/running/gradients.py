"""What layers read, and the gradient of a loss by it: from one forward and backward pass over a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F

from pcn.errors import ConfigError, StatisticsError
from pcn.running.example import Example, Forward
from pcn.running.inputs import changed_inputs
from pcn.running.outputs import logits_of

Loss = Callable[[nn.Module, Any], Tensor]  # of the model and a batch: the mean over the batch
ROWS = 1024


def predicted_loss(
    model: nn.Module,
    batch: Any,
    forward: Forward | None = None,
    instead: str = "loss=... yourself",
    generator: torch.Generator | None = None,
) -> Tensor:
    """A classifier's mean loss on labels drawn from its own predictions, whose gradients are its true Fisher's.

    Where the model is no classifier, ``instead`` is what a person should give. With the same ``generator``
    for batch after batch, the labels do not depend on how samples are cut into batches.
    """
    logits = logits_of(Example.for_model(model, batch, forward).call(model), instead).flatten(0, -2)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if not logits.isfinite().all():
        raise StatisticsError("the model puts out numbers that are not finite: train it with a smaller learning rate")
    return F.cross_entropy(logits, _drawn(logits.detach(), generator or _generator()))


def _drawn(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Labels with the chances that a model gives them; some rows at a time, which may be those of all tokens."""
    numbers = torch.rand(len(logits), 1, dtype=torch.float64, generator=generator, device="cpu").to(logits)
    rows = zip(logits.split(ROWS), numbers.split(ROWS), strict=True)
    labels = [(each.softmax(-1).cumsum(-1) < number).sum(-1) for each, number in rows]
    return torch.cat(labels).clamp_max(logits.shape[-1] - 1)


def predicted_losses(forward: Forward | None, instead: str = "loss=... yourself") -> Loss:
    """The same for one pass over batches; every process draws numbers of its own."""
    return partial(predicted_loss, forward=forward, instead=instead, generator=_generator())


def _generator() -> torch.Generator:
    rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
    return torch.Generator().manual_seed(rank)


class Reads:
    """What some layers read while the model runs, call by call.

    >>> model, x = nn.Linear(3, 1, bias=False), torch.ones(2, 3)
    >>> reads = Reads(nn.Sequential(model), ["0"], samples=2)
    >>> with reads.watching():
    ...     loss = model(x).mean()
    >>> [(name, torch.equal(gradient, model.weight.expand(2, 3))) for name, _, gradient in reads.gradients(loss)]
    [('0', True)]
    """

    def __init__(self, model: nn.Module, layers: Iterable[str], samples: int) -> None:
        self._model, self._layers, self.samples = model, list(layers), samples or 1  # where nothing tells
        self._read: list[tuple[str, Tensor, GradientEdge | None]] = []  # no edge where gradients are off

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Have hooks on the layers, and gradients where there may have been none."""
        if torch.is_inference_mode_enabled():
            raise ConfigError("no gradients are taken inside torch.inference_mode(): leave it")
        with changed_inputs(self._model, {name: self._watch(name) for name in self._layers}), torch.enable_grad():
            yield

    def gradients(self, loss: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield layer, input and gradient for every call: that of each sample's own loss, by what this layer reads."""
        if not self._layers:
            return
        if not self._read:
            raise ConfigError(
                "the loss is that of a model of which no layer that is looked at was called: give a function of model "
                "and batch that calls the model that it is given"
            )
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            given = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"type {type(loss).__name__}"
            raise ConfigError(
                f"the loss, of {given}, cannot be differentiated: give a function of model and batch that returns the "
                "mean over the batch, as one number that depends on what the model puts out"
            )
        self._check_differentiated()
        edges = [edge for _, _, edge in self._read if edge is not None]
        each = torch.full_like(loss, self.samples)  # the loss is a mean: each sample has its share of it
        # A model with checkpoints runs again in the backward pass, and must do then what it did before.
        with changed_inputs(self._model, dict.fromkeys(self._layers, _differentiable)):
            found = iter(torch.autograd.grad(loss, edges, each, allow_unused=True))
        for name, x, edge in self._read:
            gradient = None if edge is None else next(found)
            yield name, x.detach(), torch.zeros_like(x) if gradient is None else gradient

    def _check_differentiated(self) -> None:
        """Raise for layers that always run without gradients: zeros would say that nobody needs what they read."""
        known = {name for name, _, edge in self._read if edge is not None}
        unknown = sorted({name for name, _, _ in self._read} - known)
        if unknown:
            others = f" (and {len(unknown) - 1} others)" if len(unknown) > 1 else ""
            raise ConfigError(
                f"{unknown[0]!r}{others} runs without gradients, so none tell what "
                "directions of the input are worth: where that is in torch.no_grad(), exclude it from the plan or go "
                "by the response (worth=Response()) and basis='pca'; torch.utils.checkpoint needs use_reentrant=False"
            )

    def _watch(self, name: str) -> Callable[[Tensor], Tensor]:
        def change(x: Tensor) -> Tensor:
            x = _differentiable(x)
            # The edge is that of now: what is written in place later does not move it.
            self._read.append((name, x, get_gradient_edge(x) if torch.is_grad_enabled() else None))
            return x

        return change


def _differentiable(x: Tensor) -> Tensor:
    """The same values as a tensor of their own, whose gradient is that by what one layer reads."""
    if x.is_inference():
        x = x.clone()
    if not torch.is_grad_enabled():
        return x
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
