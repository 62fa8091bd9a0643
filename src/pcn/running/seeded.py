"""Random numbers that follow from a text or a seed alone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def generator(text: str) -> torch.Generator:
    """A generator whose numbers are the same for the same text, in every process and on every machine."""
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@contextmanager
def same_numbers(seed: int = 0) -> Iterator[None]:
    """Have the numbers that models draw from Python, NumPy and torch start from a seed, and give them their state back.

    Some models draw how they go through their layers while they train: run twice inside, they go the same way.
    """
    with torch.random.fork_rng(devices=[]), other_numbers_kept():
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed other devices too
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        yield


@contextmanager
def other_numbers_kept() -> Iterator[None]:
    """Give Python's random numbers and NumPy's their state back, which a model may draw beside torch's."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - it is what models use
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
