"""What layers read, and the gradient of a loss by it: from one forward and backward pass over a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pcn.errors import ConfigError
from pcn.example import Example, Forward, device_of
from pcn.inputs import changed_inputs
from pcn.outputs import logits_of

Loss = Callable[[nn.Module, Any], Tensor]  # of the model and a batch: the mean over the batch


def predicted_loss(model: nn.Module, batch: Any, forward: Forward | None = None, instead: str = "loss") -> Tensor:
    """A classifier's mean loss on labels drawn from its own predictions, whose gradients are its true Fisher's.

    Where the model is no classifier, ``instead`` is the argument that a person should give.
    """
    logits = logits_of(Example.of(batch, forward, device_of(model)).call(model), instead)
    generator = torch.Generator().manual_seed(0)
    chances = logits.detach().double().softmax(-1).flatten(0, -2).cpu()
    labels = torch.multinomial(chances, 1, generator=generator).flatten().to(logits.device)
    return F.cross_entropy(logits.flatten(0, -2), labels)


class Reads:
    """What some layers read while the model runs, call by call.

    >>> model, x = nn.Linear(3, 1, bias=False), torch.ones(2, 3)
    >>> reads = Reads(nn.Sequential(model), ["0"])
    >>> with reads.watching():
    ...     loss = model(x).mean()
    >>> [(name, torch.equal(gradient, model.weight.expand(2, 3))) for name, _, gradient in reads.gradients(loss)]
    [('0', True)]
    """

    def __init__(self, model: nn.Module, layers: Iterable[str]) -> None:
        self._model, self._layers = model, list(layers)
        self._read: list[tuple[str, Tensor]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Have hooks on the layers, and gradients where there may have been none."""
        with changed_inputs(self._model, {name: self._watch(name) for name in self._layers}), torch.enable_grad():
            yield

    @property
    def samples(self) -> int:
        """How many samples the batch has."""
        return max((len(x) for _, x in self._read), default=0)

    def gradients(self, loss: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield layer, input and gradient for every call: that of each sample's own loss, by what this layer reads."""
        if not self._read:
            return
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            given = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"type {type(loss).__name__}"
            raise ConfigError(
                f"the loss, of {given}, cannot be differentiated: give a function of model and batch that returns the "
                "mean over the batch, as one number that depends on what the model puts out"
            )
        inputs = [x for _, x in self._read]
        each = torch.full_like(loss, self.samples)  # the loss is a mean: each sample has its share of it
        # A model with checkpoints runs again on the way back, and must do then what it did before.
        with changed_inputs(self._model, dict.fromkeys(self._layers, _differentiable)):
            found = torch.autograd.grad(loss, inputs, each, allow_unused=True, materialize_grads=True)
        for (name, x), gradient in zip(self._read, found, strict=True):
            yield name, x.detach(), gradient

    def _watch(self, name: str) -> Callable[[Tensor], Tensor]:
        def change(x: Tensor) -> Tensor:
            x = _differentiable(x)
            self._read.append((name, x))
            return x

        return change


def _differentiable(x: Tensor) -> Tensor:
    """The same values as a tensor of their own, whose gradient is that by what one layer reads."""
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
