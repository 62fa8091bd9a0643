"""A switch prints as one line."""

from __future__ import annotations

import torch

import pcn
from small import Mlp, vectors


def test_a_switch_is_one_line_before_and_after() -> None:
    model = Mlp()
    switch = pcn.Switch(model, torch.optim.SGD(model.parameters(), 0.1), params=0.9, at=2)
    assert repr(switch) == "Switch(Mlp, SGD, params=0.9, at=AfterEpoch(epoch=2))"
    switch.now([vectors()])
    assert repr(switch) == "Switch(Mlp, SGD, params=0.9, switched)"
    assert repr(pcn.Switch(Mlp(), None, pcn.PCNConfig(rank=4))).startswith(
        "Switch(Mlp, no optimizer, PCNConfig(rank=4,"
    )
