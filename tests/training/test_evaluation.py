"""How often a classifier is right, with one guess and with several."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pcn.training.evaluation import accuracies_percent
from pcn.training.world import world


@given(st.integers(2, 12), st.integers(1, 4), st.integers(0, 10**6))
def test_more_guesses_are_right_as_often_or_more_also_among_equals(classes: int, levels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (30, classes), generator=generator).float()
    labels = torch.randint(classes, (30,), generator=generator)
    with world() as here:
        one, five = accuracies_percent(nn.Identity(), iter([(scores, labels)]), here, (1, 5))
    assert one == 100 * float((scores.argmax(1) == labels).sum()) / 30
    assert one <= five <= 100
    assert classes > 5 or five == 100
