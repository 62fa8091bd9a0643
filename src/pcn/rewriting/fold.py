"""Back to the architecture that the user had: bases multiplied out, dropped channels back where nobody reads them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Muon

from pcn.errors import PlanError
from pcn.layers import LAYER_TYPES, unwrap
from pcn.plans.layer_plan import LayerPlan
from pcn.plans.plan import get_plan
from pcn.rewriting.folding import folding
from pcn.rewriting.optimizer import follow_
from pcn.rewriting.optimizer_checks import check_holds, check_optimizers
from pcn.rewriting.replaced import check_hooks, hand_over_
from pcn.rewriting.surgery import commit_
from pcn.running.optimizers import Optimizers, as_optimizers
from pcn.running.refusals import check_changeable

CARRIED_BACK = (SGD, Muon)  # mean squares of gradients in directions that were not trained are unknown, not zero


@torch.inference_mode(False)  # what is made in inference mode could not be trained
@torch.no_grad()
def fold_(model: nn.Module, *, optimizer: Optimizers = None, keep_biases: bool = False) -> list[str]:
    """Turn a transformed model back, in place, into the classes, shapes and state-dict keys that it was built with.

    The function at inference stays the same, and attributes that were hung on layers come along. Dropped channels come
    back as zeros that nobody reads. A bias that a layer gained moves into the batch norm that follows in the call that
    the plan was made from; the names of layers that have to keep theirs are returned: those without such a norm, with a
    forward hook, or with norms of the same width that this call has not reached, and with ``keep_biases`` all. Give
    that where layers' outputs are also read in other ways, as features. Gradients that were gathered go along as
    momentum does.

    An ``optimizer``, or a list of all that train the model, goes on with the new parameters: SGD and Muon with their
    momentum, which is zero in directions that were not trained; the state of any other starts afresh for them, with a
    warning. An optimizer that is not given keeps the old parameters: make a new one. An averaged copy is folded by
    itself, as in ``fold_(ema.module)``.
    """
    check_changeable(model, optimizer)
    base, optimizers = unwrap(model), as_optimizers(optimizer)
    plan = get_plan(base)
    if plan is None:
        raise PlanError(f"this model carries no plan: {_instead(base)}")
    edit, kept_bias = folding(plan, base, keep_biases=keep_biases)
    check_hooks(edit.replaced)
    check_optimizers(optimizers, edit.replaced, strict=False, carried=CARRIED_BACK)
    check_holds(optimizers, edit.replaced, base, strict=False)
    with ExitStack() as undo:
        undo.callback(commit_(base, edit, None))
        hand_over_(edit.replaced)
        follow_(optimizers, edit.replaced, edit.gone, carried=CARRIED_BACK)
        undo.pop_all()
    for name, module in base.named_modules():
        if name in plan.layers and plan.layers[name].changed:  # another may stand in the place of one that was not
            _set_sizes_(module, plan.layers[name])
    return kept_bias


def _instead(model: nn.Module) -> str:
    """What can be folded in the place of a model without a plan."""
    part = next((name for name, module in model.named_modules() if get_plan(module) is not None), None)
    if part is None:
        return "only a model changed by a plan, or loaded with one, can be folded"
    return f"its part {part!r} does: give that"


def _set_sizes_(module: Any, layer: LayerPlan) -> None:
    """Have a stock layer say the sizes that it had; those of one channel left do not tell whether it was depthwise."""
    if LAYER_TYPES[layer.kind].spatial:
        module.in_channels, module.out_channels, module.groups = layer.in_features, layer.out_features, layer.groups
    elif hasattr(module, "in_features"):  # transformers' Conv1D has no such
        module.in_features, module.out_features = layer.in_features, layer.out_features
