"""What a step does before it is recorded leaves no trace."""

from __future__ import annotations

import torch

from pcn.training.step import put_back


def test_what_steps_change_is_put_back() -> None:
    weight, count = torch.nn.Parameter(torch.ones(3)), torch.zeros((), dtype=torch.long)
    with put_back([weight, count]):
        weight.data.mul_(2)
        count.add_(1)
    assert weight.tolist() == [1, 1, 1]
    assert count.item() == 0


def test_what_they_do_not_change_is_not_written_to() -> None:
    """Products with frozen bases are worked out beforehand, and hold as long as nobody writes to these."""
    basis = torch.ones(3)
    before = basis._version
    with put_back([basis]):
        pass
    assert basis._version == before
