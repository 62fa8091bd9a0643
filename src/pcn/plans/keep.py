"""Choosing the output channels to keep: which classes may go, how much each matters, and who must agree with whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pcn.config import KeepOutputs, L1Threshold
from pcn.errors import ConfigError, CouplingError
from pcn.plans.wiring import Wiring


@dataclass(frozen=True)
class Request:
    """Somebody asks a layer to keep some of its outputs; ``exact`` when the layer was named, not matched by a glob."""

    layer: str
    keep: KeepOutputs
    exact: bool


@dataclass
class Choice:
    """The outcome: which classes go, and per layer why fewer or none of its outputs do."""

    dropped: Tensor  # (class_count,) bool
    reasons: dict[str, str] = field(default_factory=dict)


def class_scores(wiring: Wiring, rows: Mapping[str, Tensor], activations: Mapping[str, str]) -> Tensor:
    """Return the score of every class: the mean, over the distinct activations that carry it, of its L1 row norms.

    ``rows`` holds, per reading layer, the L1 norm of each row of its truncated basis. Rows of one class (the positions
    of a flattened filter) are added; of layers that read the same activation the one with the largest basis speaks.
    """
    total = torch.zeros(wiring.class_count, dtype=torch.float64)
    readings = torch.zeros(wiring.class_count)
    speakers: dict[str, str] = {}
    for layer in rows:
        rival = speakers.setdefault(activations[layer], layer)
        if rows[layer].sum() > rows[rival].sum():
            speakers[activations[layer]] = layer
    for layer in speakers.values():
        classes = wiring.inputs[layer]
        total.index_add_(0, classes, rows[layer].to(total))
        readings[classes.unique()] += 1
    return total / readings.clamp(min=1)


def choose(requests: list[Request], wiring: Wiring, blocked: Mapping[int, str], scores: Tensor) -> Choice:
    """Decide, request by request from the smallest set of channels up, which classes are dropped."""
    choice = Choice(torch.zeros(wiring.class_count, dtype=torch.bool))
    decided_by: dict[int, Request] = {}
    values = scores.tolist()
    for request in sorted(requests, key=lambda r: len(wiring.outputs[r.layer])):
        _decide(request, wiring, blocked, values, choice, decided_by)
    return choice


def _decide(
    request: Request,
    wiring: Wiring,
    blocked: Mapping[int, str],
    scores: Sequence[float],
    choice: Choice,
    decided_by: dict[int, Request],
) -> None:
    classes, sizes = (t.tolist() for t in wiring.outputs[request.layer].unique(return_counts=True))
    free = [c for c in classes if c not in blocked and c not in decided_by]
    if not free and not any(c in decided_by for c in classes):
        if isinstance(request.keep, L1Threshold) or target(request.keep, sum(sizes)) < sum(sizes):
            _refuse(request, choice, blocked[classes[0]])
        return
    size = dict(zip(classes, sizes, strict=True))
    gone = set(choice.dropped.nonzero().flatten().tolist())
    kept = sum(sizes) - sum(size[c] for c in {*free, *gone} & size.keys())
    needed = _needed(free, wiring, scores, gone)
    ranked = sorted(free, key=lambda c: (c not in needed, -scores[c], c))
    taken = _take(request, ranked, needed, size, kept, sum(sizes), scores)
    if taken is None or not _agrees(request, sum(size[c] for c in taken) + kept, sum(sizes), free):
        _conflict(request, kept, classes, choice, blocked, decided_by, wiring)
        return
    choice.dropped[[c for c in free if c not in taken]] = True
    decided_by |= dict.fromkeys(free, request)


def _needed(free: list[int], wiring: Wiring, scores: Sequence[float], gone: set[int]) -> set[int]:
    """The best free class of every layer that would otherwise lose all of its outputs, or all of its inputs."""
    mine = set(free)
    needed: set[int] = set()
    for family in wiring.families:
        if family.isdisjoint(needed) and not family.isdisjoint(mine) and family <= mine | gone:
            needed.add(min(family & mine, key=lambda c: (-scores[c], c)))
    return needed


def _take(
    request: Request,
    ranked: list[int],
    needed: set[int],
    size: Mapping[int, int],
    kept: int,
    width: int,
    scores: Sequence[float],
) -> set[int] | None:
    """Pick free classes from the best down; None when what must stay is already too much."""
    if isinstance(request.keep, L1Threshold):
        above = {c for c in ranked if scores[c] > request.keep.norm}
        return above | needed or (set(ranked[:1]) if kept == 0 else set())
    budget = target(request.keep, width) - kept
    if budget < 0:
        return None
    taken: set[int] = set()
    for c in ranked:
        if size[c] <= budget:
            taken.add(c)
            budget -= size[c]
    return taken if needed <= taken else None


def target(keep: int | float, width: int) -> int:
    """How many of ``width`` outputs a count or a fraction asks for."""
    return min(keep, width) if isinstance(keep, int) else max(1, round(keep * width))


def _agrees(request: Request, kept: int, width: int, free: list[int]) -> bool:
    """A count must be met exactly by a layer that was named; a glob takes the nearest number below."""
    if isinstance(request.keep, L1Threshold):
        return bool(free)
    return kept == target(request.keep, width) or (bool(free) and kept > 0 and not request.exact)


def _conflict(
    request: Request,
    kept: int,
    classes: list[int],
    choice: Choice,
    blocked: Mapping[int, str],
    decided_by: Mapping[int, Request],
    wiring: Wiring,
) -> None:
    others = sorted((decided_by[c] for c in classes if c in decided_by), key=lambda other: other.layer)
    if others:
        other = others[0].layer
        theirs = int((~choice.dropped[wiring.outputs[other]]).sum())
        same_wish = not request.exact and all(asked.keep == request.keep for asked in others)
        if isinstance(request.keep, L1Threshold) or same_wish:
            # One wish for all of them contradicts nobody; it just cannot be met by every one to the digit.
            choice.reasons[request.layer] = f"it shares channels with {other!r}, of whose outputs {theirs} stay"
            return
        raise CouplingError(
            f"{other!r} and {request.layer!r} share channels (they meet in a sum or the like) but are asked to keep "
            f"{theirs} and {target(request.keep, len(wiring.outputs[request.layer]))} outputs; "
            "give them the same keep_outputs"
        )
    stuck = next((blocked[c] for c in classes if c in blocked), "other layers need them")
    in_groups = "its channels go in groups of several, or other layers need them"
    _refuse(request, choice, f"{kept} outputs must stay: {stuck}" if kept else in_groups)


def _refuse(request: Request, choice: Choice, reason: str) -> None:
    if request.exact:
        raise ConfigError(
            f"{request.layer!r} is asked to keep {request.keep} outputs, but none can be dropped: {reason}"
        )
    choice.reasons[request.layer] = reason
