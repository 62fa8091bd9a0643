"""What a model itself raises on a batch, with the batch and the call that it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pcn.errors import PCNError, StatisticsError
from pcn.running.example import Example

BATCHES = "give an iterable of batches, and forward=lambda model, batch: ... where the model is called otherwise"
USED_UP = (  # where nothing comes out of what was given
    "a data loader that was iterated before may be used up, one with drop_last=True gives nothing where a batch is "
    "larger than the data, and the data set may be empty"
)
ONE_SAMPLE = " has one sample, of which batch norm takes no statistics: "


@contextmanager
def saying_which(batch: str, example: Example, *, or_else: str = "", give: str = BATCHES) -> Iterator[None]:
    """Say which batch a model failed on, and what to ``give`` instead.

    ``or_else`` is what can be done with a batch of a single sample but leave it out.

    >>> from torch import nn, ones
    >>> with saying_which("batch 0", Example(ones(2, 5))):
    ...     nn.Linear(3, 2)(ones(2, 5))
    Traceback (most recent call last):
        ...
    pcn.errors.StatisticsError: the model failed on batch 0, called as model(float32[2, 5]): RuntimeError: mat1 and ...
    """
    try:
        yield
    except (PCNError, torch.OutOfMemoryError):  # which says itself what is wrong, and callers wait for
        raise
    except Exception as error:
        if is_of_one_sample(error):
            raise StatisticsError(f"{batch}{ONE_SAMPLE}leave it out (drop_last=True){or_else}") from error
        instead = (not torch.is_grad_enabled() and without_gradients(error)) or give
        raise StatisticsError(
            f"the model failed on {batch}, called as {example}: {type(error).__name__}: {error}; {instead}"
        ) from error


def without_gradients(error: Exception) -> str:
    """What to do where a model's own code takes gradients, which are off while others only look; or nothing.

    >>> without_gradients(RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn"))[:40]
    'it was run without gradients: where its '
    """
    if "does not require grad" not in str(error):
        return ""
    return (
        "it was run without gradients: where its own code takes some, give a forward= that calls it inside "
        "torch.enable_grad()"
    )


def is_of_one_sample(error: Exception) -> bool:
    """Whether this is what batch norm raises when it is to train on a single value."""
    return "more than 1 value per channel" in str(error)
