"""Which parameters an optimizer decays."""

from __future__ import annotations

from torch import nn

from pcn.training import Settings
from pcn.training.optimizers import make_optimizer

NORMS = {
    "batch": nn.BatchNorm1d(8),
    "instance": nn.InstanceNorm1d(8, affine=True),
    "layer": nn.LayerNorm(8),
    "group": nn.GroupNorm(2, 8),
    "rms": nn.RMSNorm(8),
}


def test_norms_are_decayed_only_where_that_is_asked_for() -> None:
    model = nn.ModuleDict({"linear": nn.Linear(8, 8), **NORMS})
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for decay_norms in (False, True):
        optimizer = make_optimizer(model, Settings(weight_decay=0.1, decay_norms=decay_norms))
        decayed = [names[id(p)] for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]]
        assert decayed == (list(names.values()) if decay_norms else ["linear.weight", "linear.bias"])
