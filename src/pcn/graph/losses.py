"""Losses that a model computes itself: what they compare with targets stays as it is."""

from __future__ import annotations

from pcn.graph.atoms import Atoms
from pcn.graph.rules import Call, Output, operators, refuse, rule

LOSSES = operators(
    """
    binary_cross_entropy binary_cross_entropy_with_logits cross_entropy_loss ctc_loss huber_loss kl_div l1_loss
    mse_loss nll_loss nll_loss2d nll_loss_nd smooth_l1_loss soft_margin_loss
    """
)


@rule(*LOSSES)
def loss(atoms: Atoms, call: Call) -> Output:
    return refuse(atoms, call, "a loss compares it with targets")
