"""How many channels groups of them keep in proportion to what they ask for, in steps, when a size may not be passed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

HALVINGS = 30  # of the interval in which the common factor is searched
OTHERS = 0.5  # of its proportion is what every group keeps where the least of some holds

Size = Callable[[Sequence[int]], int]
Fits = Callable[[Sequence[int]], bool]


@dataclass(frozen=True)
class Group:
    """So many channels that share a width, the share of them that is asked for, the least to keep, and steps."""

    channels: int
    share: float
    least: int = 0
    step: int = 1

    def wish(self, factor: float) -> float:
        """What is asked for when every wish is multiplied by a factor."""
        return max(min(factor * self.share, 1.0) * self.channels, self.least)

    def step_at(self, width: float) -> int:
        """The step, or as much of it as a width holds twice: rounded to more, a narrow layer would be another one."""
        step = self.step
        while step > 1 and 2 * step > width:
            step //= 2
        return step

    def kept(self, factor: float) -> int:
        """The multiple of the step that is nearest to the wish, or all channels where these are nearer."""
        wish = self.wish(factor)
        step = self.step_at(wish)
        count = round(wish / step) * step
        count += step * (count < self.least)
        return self.channels if abs(count - wish) > self.channels - wish else count


def fewest(groups: Sequence[Group]) -> list[int]:
    """What groups keep in proportion where no least holds: a channel, and no single one where more are asked for."""
    free = _singly(groups, least=0)
    return [group.kept(_smallest(free)) for group in free]


def in_proportion(groups: Sequence[Group], size: Size, most: int, enough: float) -> list[int]:
    """Return the channels that groups keep in proportion, in steps, where their size may be ``most``.

    What rounding leaves goes where it brings groups nearer to their wishes, in steps and then in finer ones, until the
    size is ``enough``; where it never is, all steps are halved. The least of a group gives way where others would keep
    less than half of their proportion. The fewest channels have to be small enough.
    """

    def fits(counts: Sequence[int]) -> bool:
        return size(counts) <= most

    free, bound = _singly(groups, least=0), _singly(groups)
    factor, best = _factor(free, fits), fewest(groups)
    if fits([group.kept(max(OTHERS * factor, _smallest(groups))) for group in bound]):
        factor = _factor(bound, fits)
    else:
        groups = [replace(group, least=0) for group in groups]
    wishes = [group.wish(factor) for group in groups]
    for halvings in range(max((group.step for group in groups), default=0).bit_length()):
        stepped = [replace(group, step=max(group.step >> halvings, 1)) for group in groups]
        counts = [group.kept(_factor(stepped, fits)) for group in stepped]
        if fits(counts):
            best = max(best, _filled(stepped, counts, wishes, size, most, enough), key=size)
        if size(best) >= enough:
            break
    return best


def _singly(groups: Sequence[Group], **changes: int) -> list[Group]:
    """The groups in steps of one channel."""
    return [replace(group, step=1, **changes) for group in groups]


def _smallest(groups: Sequence[Group]) -> float:
    """The factor above which every group keeps a channel, and no single one where more than one is asked for."""
    wishes = [group.share * group.channels for group in groups]
    return max(((0.501 if wish < 1.5 else 1.501) / wish for wish in wishes), default=0.0)


def _factor(groups: Sequence[Group], fits: Fits) -> float:
    """The largest factor by which all wishes can be multiplied."""
    low, high = _smallest(groups), 1.0 / min((group.share for group in groups), default=1.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if fits([group.kept(middle) for group in groups]):
            low = middle
        else:
            high = middle
    return low


def _filled(
    groups: Sequence[Group], counts: list[int], wishes: Sequence[float], size: Size, most: int, enough: float
) -> list[int]:
    """The numbers with more of what is nearer to the wishes, in finer and finer steps, until the size is enough."""
    for finer in range(max(group.step for group in groups).bit_length() + 1):
        while size(counts) < enough:
            more = [each for each in _more(groups, counts, wishes, finer) if size(each) <= most]
            if not more:
                break
            counts = max(more, key=size)  # so that few groups leave their steps
    return counts


def _more(groups: Sequence[Group], counts: list[int], wishes: Sequence[float], finer: int) -> Iterator[list[int]]:
    """Numbers with a step more, halved so often, in one group: nearer to its wish, or at last somewhat above."""
    for index, (group, count, wish) in enumerate(zip(groups, counts, wishes, strict=True)):
        step = group.step_at(count) >> finer
        last = group.step == finer == 1 and count < wish + 1
        if last or (step and count + step - wish <= wish - count):
            more = [*counts[:index], count + max(step, 1), *counts[index + 1 :]]
            if more[index] <= group.channels:
                yield more
