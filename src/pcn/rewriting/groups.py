"""What stands in the groups of optimizers once parameters have given way to others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from pcn.rewriting.replaced import Gained, Replaced

Group = dict[str, Any]
Member = tuple[nn.Parameter, str]  # with its name, where the group knows names

TAKES_ALL = (SGD, Adam, AdamW)  # parameters of any shape


def held_by(optimizers: Iterable[Optimizer]) -> set[int]:
    """The ids of all parameters that stand in some group."""
    return {id(parameter) for _, group in _groups(optimizers) for parameter in group["params"]}


def members_after(
    optimizers: Sequence[Optimizer], replaced: Sequence[Replaced], gone: Iterable[nn.Parameter] = ()
) -> dict[int, list[Member]]:
    """What each group holds afterwards, by the group's id: new parameters in the places of the old ones.

    A gained parameter stands behind its layer's bias, behind the weight where no group holds one, or at the end of the
    group that :func:`home` finds for it.
    """
    by_old, left = {id(change.old): change for change in replaced}, {id(parameter) for parameter in gone}
    held = held_by(optimizers)
    after: dict[int, list[Member]] = {id(group): [] for _, group in _groups(optimizers)}
    adopted: dict[int, list[Member]] = defaultdict(list)
    for optimizer, group in _groups(optimizers):
        for parameter, name in _members(group):
            change = by_old.get(id(parameter))
            if id(parameter) not in left:
                after[id(group)].append((parameter if change is None else change.new, name))
            for full_name, gained in _gained(change, by_old, held):
                where = home(gained, optimizer, group, optimizers)
                own = f"{name.rpartition('.')[0]}.{full_name.rpartition('.')[2]}" if "." in name else full_name
                (after if where is group else adopted)[id(where)].append((gained, own))
    return {each: members + adopted[each] for each, members in after.items()}


def _gained(change: Replaced | None, by_old: dict[int, Replaced], held: set[int]) -> tuple[Gained, ...]:
    """The parameters that come in with one that gives way: its own, and those of a bias that nobody trains."""
    if change is None:
        return ()
    bias = by_old.get(id(change.old_bias))
    return change.gained if bias is None or id(bias.old) in held else change.gained + bias.gained


def home(gained: nn.Parameter, optimizer: Optimizer, group: Group, optimizers: Sequence[Optimizer]) -> Group:
    """The group that trains a gained parameter: its weight's own, where that may take vectors.

    A bias beside a weight in a group of matrices alone, of an optimizer that may be for matrices (Muon), joins the
    first group that holds vectors: of the same optimizer, or else of the others in their order. Without any it stays.
    """
    if gained.ndim != 1 or isinstance(optimizer, TAKES_ALL) or _holds_vectors(group):
        return group
    others = [each for each in optimizers if each is not optimizer]
    return next((each for _, each in _groups([optimizer, *others]) if _holds_vectors(each)), group)


def _groups(optimizers: Iterable[Optimizer]) -> Iterator[tuple[Optimizer, Group]]:
    return ((optimizer, group) for optimizer in optimizers for group in optimizer.param_groups)


def _members(group: Group) -> Iterator[Member]:
    names = group.get("param_names") or [""] * len(group["params"])
    return zip(group["params"], names, strict=True)


def _holds_vectors(group: Group) -> bool:
    return any(parameter.ndim == 1 for parameter in group["params"])
