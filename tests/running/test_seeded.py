"""Random numbers that follow from a seed are the same whatever device new tensors are made on by default."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import pcn
from pcn.rewriting import directions
from pcn.running.gradients import predicted_loss
from pcn.statistics import eigen, krylov
from pcn.statistics.sketch import Sketch
from small import Mlp, vectors

MODEL, X, EYE = Mlp(), vectors(), torch.eye(6, dtype=torch.float64)
DRAWN: dict[str, Callable[[], Tensor]] = {
    "a part of each batch": lambda: pcn.analyze(MODEL, [X], fraction=0.5).mean("fc2"),
    "predicted labels": lambda: predicted_loss(MODEL, X).detach(),
    "random directions": lambda: directions.random(EYE[None], 2, "fc2").along,
    "few samples": lambda: eigen.of_rank(EYE[None], 2)[1],
    "a Krylov space": lambda: krylov.random_rows(2, EYE),
    "test vectors": lambda: Sketch.random(EYE[:1], 2, seed=0).test,
}


@pytest.mark.parametrize("what", DRAWN)
def test_a_default_device_changes_nothing(what: str) -> None:
    expected = DRAWN[what]()
    with torch.device("meta"):  # stands for a GPU, which a generator of the CPU does not draw for
        assert DRAWN[what]().equal(expected)
