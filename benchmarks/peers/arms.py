"""The arms of the search for a planner: what each changes in the settings of the first, or a switch of its own.

Those without a ``network`` are of WideResNet-20. Epochs at which a network switches or changes again are those of a run
of 20; a longer run scales them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from peers.late_changes import (
    BasisTrainedFirst,
    DecayedDense,
    FactorsTrained,
    MoreDecay,
    Renewed,
    Rewhitened,
    SizedByWeights,
    TwoCuts,
)
from peers.own_patches import OwnPatchSwitch
from peers.patches import PatchSwitch
from peers.svd import quarter_rank

NARROW_FLOPS = 326_830_592  # per sample, of the narrower network with as many parameters
UNSWITCHED = {"switch_at": "never"}
PLAIN = {"model": "peers.networks:narrow"}  # trained from scratch
NARROW = {**PLAIN, **UNSWITCHED}
WHITENED = {"precondition": 1.0}
AS_TRAINED = {**WHITENED, "analysis_mode": "batch"}  # batch norm in the look as in training: running statistics lag
FULL_RANK = {"params": None, "rank": "1.0", "skip_larger": False}  # other coordinates, and nothing else
HALF_AND_HALF = {  # the sizes of half the width, behind bases on both sides; shortcuts, which stay whole, are paid for
    "params": None,
    "rank": "0.5",
    "output_rank": 0.5,
    "layers": {"stage3.*.conv2": {"rank": 0.46875, "output_rank": 0.5}},
    "exclude": ("conv1", "fc"),
}
SIZED = {**AS_TRAINED, "switch": SizedByWeights}
ENDS = ("conv1", "fc")  # the first and the last layer, which are small
EVENLY = {"worth": "evenly", "exclude": ENDS}
TUNED = {"learning_rate": 0.05, "weight_decay": 5e-4}  # the best of the comparison's grid for the parent
EVENLY_OF_CONV4 = {**EVENLY, "exclude": ("conv1", "output")}
FOUR_EVENLY = {**AS_TRAINED, **TUNED, "kernel_rank": 4, **EVENLY}  # the comparison's planner
HEDGING = {**AS_TRAINED, **TUNED, "patterns": True, "worth": "hedged"}  # what a budget of parameters does by itself
# Low rank from principal directions in place of singular ones: a budget counts bases that are trained.
FACTORS = {**TUNED, "analysis_mode": "batch", "train_basis": True, "precondition": 0.0, "switch": FactorsTrained}
CONV4 = {"network": "conv4", "precondition": None, "analysis_mode": None}  # it has no batch norm
ARMS: dict[str, dict[str, Any]] = {
    "plain directions": {},
    "parent": UNSWITCHED,
    "parent, decay 5e-4": {**UNSWITCHED, "weight_decay": 5e-4},
    "parent, tuned": {**UNSWITCHED, **TUNED},
    "narrow": NARROW,
    "narrow, tuned": {**NARROW, "learning_rate": 0.2, "weight_decay": 5e-4},  # the best of the grid for it
    "tuned, batch statistics, precondition 1": {**AS_TRAINED, **TUNED},
    "tuned, batch statistics, precondition 1, twice the rate": {**AS_TRAINED, **TUNED, "switch_rate": 2.0},
    "tuned, batch statistics, precondition 1, four times the rate": {**AS_TRAINED, **TUNED, "switch_rate": 4.0},
    "tuned, batch statistics, precondition 1, paper's ranks": {
        **AS_TRAINED,
        **TUNED,
        "params": None,
        "pcn": "wide_resnet20-pcn1",
    },
    "tuned, batch statistics, precondition 1, floor 1/8": {**AS_TRAINED, **TUNED, "rank_floor": 0.125},
    "tuned, batch statistics, precondition 1, floor 3/16": {**AS_TRAINED, **TUNED, "rank_floor": 0.1875},
    "tuned, batch statistics, precondition 1, taylor": {**AS_TRAINED, **TUNED, "worth": "taylor"},
    "tuned, batch statistics, precondition 1, switch after 8": {**AS_TRAINED, **TUNED, "switch_at": "8"},
    "tuned, batch statistics, precondition 1, half and half": {**AS_TRAINED, **TUNED, **HALF_AND_HALF},
    "tuned, batch statistics, precondition 1, two-sided": {**AS_TRAINED, **TUNED, "two_sided": True},
    "tuned, sized by weights": {**SIZED, **TUNED},
    "tuned, batch statistics, precondition 1, basis trained": {**AS_TRAINED, **TUNED, "train_basis": True},
    "tuned, batch statistics, basis trained": {**AS_TRAINED, **TUNED, "train_basis": True, "precondition": 0.0},
    "tuned, batch statistics, precondition 1/2": {**AS_TRAINED, **TUNED, "precondition": 0.5},
    "tuned, batch statistics, precondition 1, dense weight decayed": {**AS_TRAINED, **TUNED, "switch": DecayedDense},
    "tuned, batch statistics, precondition 1, floor 3/16, switch after 8": {
        **AS_TRAINED,
        **TUNED,
        "rank_floor": 0.1875,
        "switch_at": "8",
    },
    "tuned, batch statistics, precondition 1, renewed every 2 epochs": {
        **AS_TRAINED,
        **TUNED,
        "switch": partial(Renewed, every=2, until=8, share=0.25),
    },
    "tuned, patches": {**TUNED, "switch": PatchSwitch},
    "tuned, patches, even shares": {**TUNED, "switch": partial(PatchSwitch, even=True)},
    "tuned, separable patches": {**TUNED, "switch": partial(PatchSwitch, separable=True)},
    "tuned, separable patches, even shares": {**TUNED, "switch": partial(PatchSwitch, separable=True, even=True)},
    "tuned, patches of 4 positions": {**TUNED, "switch": partial(PatchSwitch, positions=4)},
    "tuned, patches of 6 positions": {**TUNED, "switch": partial(PatchSwitch, positions=6)},
    "tuned, own patches of every output": {**TUNED, "switch": OwnPatchSwitch},
    "tuned, own taps of every output": {**TUNED, "switch": partial(OwnPatchSwitch, plain=True)},
    "tuned, patterns by response, kernel rank 4": {**AS_TRAINED, **TUNED, "kernel_rank": 4},
    "tuned, patterns by response, kernel rank 4, even ranks": FOUR_EVENLY,
    "tuned, patterns by response, kernel rank 4, even ranks in 32s": {
        **FOUR_EVENLY,
        "rank_step": 32,  # as convolutions on a GPU like them
    },
    "tuned, patterns by response, kernel rank 4, even ranks, shortcuts whole": {
        **FOUR_EVENLY,
        "exclude": (*ENDS, "*.shortcut.*"),  # projections of one tap, which have no patterns
    },
    "tuned, patterns by response, kernel rank 4, even ranks, switch after 8": {**FOUR_EVENLY, "switch_at": "8"},
    "tuned, patterns by response, kernel rank 4, even ranks, dropped part kept": {**FOUR_EVENLY, "keep_dropped": True},
    "tuned, patterns by response, kernel rank 4, even ranks, precondition 1/2": {**FOUR_EVENLY, "precondition": 0.5},
    "tuned, patterns by response, kernel rank 4, even ranks, precondition 1/4": {**FOUR_EVENLY, "precondition": 0.25},
    "tuned, patterns by response, kernel rank 4, even ranks, basis trained": {**FOUR_EVENLY, "train_basis": True},
    "tuned, patterns by response, kernel rank 4, even ranks, twice the rate": {**FOUR_EVENLY, "switch_rate": 2.0},
    "tuned, patterns by response, kernel rank 4, even ranks, four times the rate": {**FOUR_EVENLY, "switch_rate": 4.0},
    "tuned, patterns by response, kernel rank 4, even ranks, four times the decay": {
        **FOUR_EVENLY,
        "switch": partial(MoreDecay, times=4.0),
    },
    "tuned, patterns chosen, hedged": HEDGING,
    "tuned, patterns chosen, hedged, ranks in 32s": {**HEDGING, "rank_step": 32},
    "tuned, patterns chosen, hedged, ranks in 4s": {**HEDGING, "rank_step": 4},
    "tuned, patterns chosen, hedged, precondition 1/2": {**HEDGING, "precondition": 0.5},
    "tuned, patterns chosen, hedged, switch after 8": {**HEDGING, "switch_at": "8"},
    "tuned, patterns chosen, hedged, dense weight decayed": {**HEDGING, "switch": DecayedDense},
    "tuned, patterns chosen, hedged, narrow's operations": {**HEDGING, "flops": NARROW_FLOPS},
    "tuned, patterns chosen, hedged, two cuts": {**HEDGING, "switch": partial(TwoCuts, first=0.5, again_at=8)},
    "tuned, patterns chosen, hedged, basis trained to epoch 8": {
        **HEDGING,
        "carry_state": False,
        "switch": partial(BasisTrainedFirst, again_at=8),
    },
    "tuned, patterns chosen, hedged, fresh optimizer": {**HEDGING, "carry_state": False},  # beside the one above
    "tuned, svd, a quarter": {**TUNED, "switch": quarter_rank},
    "tuned, factors trained": FACTORS,
    "tuned, factors trained, hedged": {**FACTORS, "worth": "hedged"},
    "tuned, factors trained, even ranks": {**FACTORS, **EVENLY},
    "tuned, factors trained, response basis, even ranks": {**FACTORS, **EVENLY, "basis": "response"},
    "tuned, batch statistics, precondition 1, hedged": {**AS_TRAINED, **TUNED, "worth": "hedged"},
    "tuned, patterns chosen, even ranks": {**AS_TRAINED, **TUNED, "patterns": True, **EVENLY},
    "tuned, patterns chosen": {**AS_TRAINED, **TUNED, "patterns": True},
    "tuned, patterns by response, kernel rank 3, even ranks": {**AS_TRAINED, **TUNED, "kernel_rank": 3, **EVENLY},
    "narrow, decay 5e-4": {**NARROW, "weight_decay": 5e-4},
    "narrow, precondition 1": {**PLAIN, **AS_TRAINED, **FULL_RANK},  # what preconditioning gains without PCA's cut
    "paper's ranks": {"params": None, "pcn": "wide_resnet20-pcn1"},
    "taylor": {"worth": "taylor"},
    "divergence": {"worth": "divergence"},
    "two-sided": {"two_sided": True},
    "two-sided, taylor": {"two_sided": True, "worth": "taylor"},
    "two-sided, half and half": HALF_AND_HALF,
    "precondition 1/4": {"precondition": 0.25},
    "precondition 1/2": {"precondition": 0.5},
    "precondition 1/2, taylor": {"precondition": 0.5, "worth": "taylor"},
    "precondition 3/4": {"precondition": 0.75},
    "precondition 3/4, taylor": {"precondition": 0.75, "worth": "taylor"},
    "precondition 1": WHITENED,
    "precondition 1, taylor": {**WHITENED, "worth": "taylor"},
    "precondition 1, divergence": {**WHITENED, "worth": "divergence"},
    "batch statistics, taylor": {"analysis_mode": "batch", "worth": "taylor"},
    "batch statistics, precondition 1": AS_TRAINED,
    "batch statistics, precondition 1, taylor": {**AS_TRAINED, "worth": "taylor"},
    "batch statistics, precondition 1, divergence": {**AS_TRAINED, "worth": "divergence"},
    "batch statistics, precondition 1, paper's ranks": {**AS_TRAINED, "params": None, "pcn": "wide_resnet20-pcn1"},
    "batch statistics, precondition 1, switch after 4, taylor": {**AS_TRAINED, "worth": "taylor", "switch_at": "4"},
    "batch statistics, precondition 1, switch after 8, taylor": {**AS_TRAINED, "worth": "taylor", "switch_at": "8"},
    "batch statistics, precondition 1, switch after 12, taylor": {  # two epochs after the rate's first drop
        **AS_TRAINED,
        "worth": "taylor",
        "switch_at": "12",
    },
    "batch statistics, precondition 1, whitened again every 3 epochs, taylor": {
        **AS_TRAINED,
        "worth": "taylor",
        "switch": partial(Rewhitened, every=3),
    },
    "batch statistics, precondition 1, dropped part kept, taylor": {
        **AS_TRAINED,
        "worth": "taylor",
        "keep_dropped": True,
    },
    "batch statistics, precondition 1, balanced basis, taylor": {**AS_TRAINED, "basis": "balanced", "worth": "taylor"},
    "batch statistics, precondition 1, decay 5e-4, taylor": {**AS_TRAINED, "worth": "taylor", "weight_decay": 5e-4},
    "sized by weights, taylor": {**SIZED, "worth": "taylor"},  # these with batch statistics and precondition 1
    "sized by weights, paper's ranks": {**SIZED, "params": None, "pcn": "wide_resnet20-pcn1"},
    "sized by weights, narrow's operations, taylor": {**SIZED, "worth": "taylor", "flops": NARROW_FLOPS},
    "precondition 1, paper's ranks": {**WHITENED, "params": None, "pcn": "wide_resnet20-pcn1"},
    "precondition 1, response basis": {**WHITENED, "basis": "response"},
    "precondition 1, balanced basis": {**WHITENED, "basis": "balanced"},
    "precondition 1, balanced basis, taylor": {**WHITENED, "basis": "balanced", "worth": "taylor"},
    "precondition 1, random basis": {**WHITENED, "basis": "random"},
    "precondition 1, two-sided, taylor": {**WHITENED, "two_sided": True, "worth": "taylor"},
    "precondition 1, fades over 1 epoch": {**WHITENED, "fade_epochs": 1.0},
    "precondition 1, decay 5e-4": {**WHITENED, "weight_decay": 5e-4},
    "precondition 1, switch after 4": {**WHITENED, "switch_at": "4"},
    "precondition 1, fresh optimizer, taylor": {**WHITENED, "worth": "taylor", "carry_state": False},
    "precondition 1, decay 5e-4, taylor": {**WHITENED, "worth": "taylor", "weight_decay": 5e-4},
    "precondition 1, switch after 1, taylor": {**WHITENED, "worth": "taylor", "switch_at": "1"},
    "precondition 1, switch after 4, taylor": {**WHITENED, "worth": "taylor", "switch_at": "4"},
    "precondition 1, dropped part kept, frozen, taylor": {**WHITENED, "worth": "taylor", "keep_dropped": True},
    "precondition 1, narrow's operations, taylor": {**WHITENED, "worth": "taylor", "flops": NARROW_FLOPS},
    "precondition 1, drops channels": {**WHITENED, "drop_channels": True},
    "fades over 1 epoch": {"fade_epochs": 1.0},
    "fades over 3 epochs": {"fade_epochs": 3.0},
    "response basis": {"basis": "response"},
    "response basis, taylor": {"basis": "response", "worth": "taylor"},
    "random basis": {"basis": "random"},
    "dropped part kept, frozen": {"keep_dropped": True},
    "fresh optimizer": {"carry_state": False},
    "fresh optimizer, no decay": {"carry_state": False, "weight_decay": 0.0},  # a carried one keeps its decay
    "precondition 1/2, no decay": {"precondition": 0.5, "carry_state": False, "weight_decay": 0.0},
    "batch norm recalibrated": {"recalibrate": True},
    "basis trained": {"train_basis": True},
    "two cuts": {"carry_state": False, "switch": partial(TwoCuts, first=0.5, again_at=5)},  # beside fresh optimizer
    "basis trained to epoch 5": {"carry_state": False, "switch": partial(BasisTrainedFirst, again_at=5)},
    "precondition 1, basis trained to epoch 5, taylor": {
        **WHITENED,
        "worth": "taylor",
        "carry_state": False,
        "switch": partial(BasisTrainedFirst, again_at=5),
    },
    "decay 5e-4": {"weight_decay": 5e-4},
    "switch after 1": {"switch_at": "1"},
    "switch after 4": {"switch_at": "4"},
    "switch after 8": {"switch_at": "8"},
    "conv4": {**CONV4, **UNSWITCHED},
    "conv4, narrow": {**CONV4, **NARROW},
    "conv4, paper's ranks": {**CONV4, "params": None, "pcn": "conv4-pcn"},
    "conv4, planner": CONV4,
    "conv4, patterns chosen": {**CONV4, "patterns": True},
    "conv4, drops channels": {**CONV4, "drop_channels": True},
    "conv4, patterns chosen, drops channels": {**CONV4, "patterns": True, "drop_channels": True},
    "conv4, taylor": {**CONV4, "worth": "taylor"},
    "conv4, patterns chosen, even ranks": {**CONV4, "patterns": True, **EVENLY_OF_CONV4},
    "conv4, patterns chosen, drops channels, even ranks": {
        **CONV4,
        "patterns": True,
        "drop_channels": True,
        **EVENLY_OF_CONV4,
    },
    "conv4, patterns chosen, drops channels, stored as the paper's": {
        **CONV4,
        "patterns": True,
        "drop_channels": True,
        "stored": 317_910,
    },
    "conv4, hedged": {**CONV4, "worth": "hedged"},
    "conv4, patterns chosen, hedged": {**CONV4, "patterns": True, "worth": "hedged"},
    "conv4, patterns chosen, drops channels, hedged": {
        **CONV4,
        "patterns": True,
        "drop_channels": True,
        "worth": "hedged",
    },
    "conv4, patterns chosen, taylor": {**CONV4, "patterns": True, "worth": "taylor"},
}
# Arms of which there are results and no code any more: up to commit f0e2769 every direction had as many patterns, those
# of most variance.
GONE: dict[str, dict[str, Any]] = {
    "tuned, batch statistics, precondition 1, kernel rank 4": TUNED,
    "tuned, batch statistics, precondition 1, kernel rank 4, even ranks": TUNED,
    "tuned, batch statistics, precondition 1, kernel rank 5, even ranks": TUNED,
}
EVERY = {**ARMS, **GONE}


def alike(arm: str, changes: dict[str, Any]) -> str | None:
    """The arm of the same network as another that has just these changes."""
    network = CONV4 if "network" in EVERY[arm] else {}
    return next((name for name, each in ARMS.items() if each == {**network, **changes}), None)


PROMISING = (  # to be tried first
    "narrow",
    "batch statistics, precondition 1, taylor",
    "batch statistics, precondition 1, switch after 12, taylor",
    "batch statistics, precondition 1, whitened again every 3 epochs, taylor",
    "batch statistics, precondition 1, switch after 4, taylor",
    "batch statistics, precondition 1, switch after 8, taylor",
    "sized by weights, taylor",
    "batch statistics, precondition 1",
    "sized by weights, paper's ranks",
    "sized by weights, narrow's operations, taylor",
    "precondition 1, taylor",
    "batch statistics, taylor",
    "batch statistics, precondition 1, dropped part kept, taylor",
    "batch statistics, precondition 1, balanced basis, taylor",
    "batch statistics, precondition 1, divergence",
    "batch statistics, precondition 1, decay 5e-4, taylor",
    "narrow, decay 5e-4",  # beside the one above
    "precondition 1, narrow's operations, taylor",
    "precondition 1, two-sided, taylor",
    "precondition 1, basis trained to epoch 5, taylor",
)
FINALISTS = (  # to be confirmed over more epochs
    "parent",
    "narrow",
    "batch statistics, precondition 1, taylor",
    "batch statistics, precondition 1, switch after 12, taylor",
    "batch statistics, precondition 1, switch after 4, taylor",
    "sized by weights, taylor",
    "narrow, precondition 1",  # what of a gain is preconditioning alone
)
RATES = (  # does a network that has become small want a larger rate?
    "parent, tuned",
    "narrow, tuned",
    "tuned, batch statistics, precondition 1",
    "tuned, batch statistics, precondition 1, twice the rate",
    "tuned, batch statistics, precondition 1, four times the rate",
)
LATE = (  # does what a plan is made of early fit what is learnt late? to be tried over 60 epochs
    "parent, tuned",
    "narrow, tuned",
    "tuned, batch statistics, precondition 1",
    "tuned, batch statistics, precondition 1, half and half",
    "tuned, batch statistics, precondition 1, paper's ranks",
    "tuned, batch statistics, precondition 1, floor 3/16",
    "tuned, batch statistics, precondition 1, floor 1/8",
    "tuned, batch statistics, precondition 1, two-sided",
    "tuned, batch statistics, precondition 1, switch after 8",
    "tuned, batch statistics, precondition 1, taylor",
    "tuned, sized by weights",
)
BASES = (  # is it the bases, found early and fixed, that hold it back, or what decay has become in them?
    "narrow, tuned",
    "tuned, batch statistics, precondition 1",
    "tuned, batch statistics, precondition 1, basis trained",
    "tuned, batch statistics, basis trained",
    "tuned, batch statistics, precondition 1, renewed every 2 epochs",
    "tuned, batch statistics, precondition 1/2",
    "tuned, batch statistics, precondition 1, dense weight decayed",
    "tuned, batch statistics, precondition 1, floor 3/16",
    "tuned, batch statistics, precondition 1, floor 3/16, switch after 8",
    "tuned, batch statistics, precondition 1, switch after 8",
)
PATCHES = (  # is it better spent on directions of whole patches than of channels?
    "narrow, tuned",
    "tuned, batch statistics, precondition 1",
    "tuned, patches",
    "tuned, patches, even shares",
    "tuned, separable patches",
    "tuned, separable patches, even shares",
    "tuned, patches of 4 positions",
    "tuned, patches of 6 positions",
    "tuned, batch statistics, precondition 1, basis trained",
    "tuned, batch statistics, precondition 1, floor 3/16",
)
PATTERNS = (  # the library's own form of that: ranks handed out, or the same share everywhere?
    "narrow, tuned",
    "tuned, separable patches, even shares",
    "tuned, patterns by response, kernel rank 4, even ranks",
    "tuned, patterns chosen, even ranks",
    "tuned, patterns by response, kernel rank 4, even ranks in 32s",
    "tuned, patterns by response, kernel rank 4, even ranks, shortcuts whole",
    "tuned, patterns chosen",
    "tuned, patterns by response, kernel rank 4",
    "tuned, patterns by response, kernel rank 3, even ranks",
    "tuned, batch statistics, precondition 1, floor 3/16",
    "tuned, batch statistics, precondition 1",
)
HEDGED = (  # one way to hand out that is good for tight and for loose budgets, so that nobody has to choose?
    "narrow, tuned",
    "tuned, patterns chosen, hedged",
    "tuned, patterns chosen, even ranks",
    "tuned, patterns chosen",
    "tuned, patterns by response, kernel rank 4, even ranks",
    "tuned, batch statistics, precondition 1, hedged",
    "tuned, batch statistics, precondition 1",
)
GAP = (  # what keeps the planner's network below its parent? it fits as well, so what pulls it back harder comes first
    "parent, tuned",
    "tuned, patterns chosen, hedged",
    "tuned, own patches of every output",  # is it that all outputs of a layer share a subspace?
    "tuned, own taps of every output",
    "tuned, patterns chosen, hedged, two cuts",
    "tuned, patterns chosen, hedged, dense weight decayed",
    "tuned, patterns chosen, hedged, switch after 8",
    "tuned, patterns chosen, hedged, precondition 1/2",
    "tuned, patterns chosen, hedged, ranks in 32s",
    "tuned, patterns chosen, hedged, ranks in 4s",
    "tuned, patterns chosen, hedged, narrow's operations",  # and how much of the gain is paid for in operations?
    "tuned, patterns chosen, hedged, basis trained to epoch 8",
    "tuned, patterns chosen, hedged, fresh optimizer",
    "tuned, patterns by response, kernel rank 4, even ranks",
    "tuned, patterns by response, kernel rank 4, even ranks, precondition 1/2",
    "tuned, patterns by response, kernel rank 4, even ranks, twice the rate",
    "tuned, patterns by response, kernel rank 4, even ranks, precondition 1/4",
    "tuned, patterns by response, kernel rank 4, even ranks, four times the decay",
    "tuned, patterns by response, kernel rank 4, even ranks, four times the rate",
    "tuned, patterns by response, kernel rank 4, even ranks, switch after 8",
    "tuned, patterns by response, kernel rank 4, even ranks, dropped part kept",
    "tuned, patterns by response, kernel rank 4, even ranks, basis trained",
    "tuned, separable patches, even shares",
)
BOTH_FACTORS = (  # what is best where operations count as well?
    "narrow, tuned",
    "tuned, svd, a quarter",
    "tuned, factors trained, even ranks",
    "tuned, factors trained, hedged",
    "tuned, factors trained, response basis, even ranks",
    "tuned, factors trained",
    "tuned, patterns chosen, hedged, narrow's operations",
)
OF_CONV4 = tuple(name for name, arm in ARMS.items() if arm.get("network") == "conv4")
GROUPS = {
    "promising": PROMISING,
    "finalists": FINALISTS,
    "rates": RATES,
    "late": LATE,
    "bases": BASES,
    "patches": PATCHES,
    "patterns": PATTERNS,
    "hedged": HEDGED,
    "gap": GAP,
    "factors": BOTH_FACTORS,
    "conv4": OF_CONV4,
}
