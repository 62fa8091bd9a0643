"""Statistics over several processes are those of one process that sees all batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

import pcn
from distributed.worker import everyones, near, raised, run_checks, same_everywhere
from pcn.distributed.agreement import _digest
from pcn.statistics import Statistics, forms
from pcn.statistics.moments import Covariance
from pcn.statistics.samples import Samples
from pcn.statistics.sketch import Sketch
from small import ConvNet, Mlp, images, vectors

Parts = list[list[Tensor]]  # by rank: its batches


class Routed(nn.Module):
    """Calls ``left`` for batches that begin with a positive number and ``right`` for the others."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.both = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x[0, 0] > 0):
            return self.both(self.left(x))
        return self.both(self.right(x))


class Shared(nn.Module):
    """``first`` and ``second`` read the same activation; which one is called first depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.apart = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.stem(x))
        if self.apart:
            return self.first(hidden) + self.second(hidden * 2)
        if bool(x[0, 0] > 0):
            return self.first(hidden) + self.second(hidden)
        return self.second(hidden) + self.first(hidden)


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def parts_of(data: Tensor, counts: list[int], smallest: int = 4) -> Parts:
    """Give every rank so many batches of the data, of growing size."""
    sizes = [[smallest + number for number in range(count)] for count in counts]
    batches = iter(data[: sum(map(sum, sizes))].split([one for own in sizes for one in own]))
    return [[next(batches) for _ in own] for own in sizes]


@contextmanager
def narrow(covariance: int, largest: int) -> Iterator[None]:
    """Have inputs wider than these numbers kept as samples, and sketched."""
    before = forms.COVARIANCE_WIDTH, forms.LARGEST_COVARIANCE
    forms.COVARIANCE_WIDTH, forms.LARGEST_COVARIANCE = covariance, largest
    try:
        yield
    finally:
        forms.COVARIANCE_WIDTH, forms.LARGEST_COVARIANCE = before


def both(model: nn.Module, parts: Parts, **options: object) -> tuple[Statistics, Statistics]:
    """The statistics of all ranks together, and of one process that sees all."""
    joint = pcn.analyze(model, parts[rank()], group=dist.group.WORLD, **options)
    alone = pcn.analyze(model, [batch for own in parts for batch in own], **options)
    assert joint.layers == alone.layers
    assert joint.left_alone == alone.left_alone
    assert list(joint.moments) == list(alone.moments)
    held = {key: [type(m).__name__, m.count, _digest(m.mean())] for key, m in joint.moments.items()}
    assert same_everywhere((joint.layers, held))
    for key, moments in joint.moments.items():
        assert type(moments) is type(alone.moments[key])
        assert moments.count == alone.moments[key].count
    return joint, alone


def agree(joint: Statistics, alone: Statistics, tolerance: float) -> None:
    for name in alone.layers:
        near(joint.mean(name), alone.mean(name), tolerance)
        near(joint.covariance(name), alone.covariance(name), tolerance)


def check_convolutions_and_dense_layers_with_uneven_batches() -> None:
    counts, data = [number + 1 for number in range(size())], images(80)
    agree(*both(ConvNet(), parts_of(data, counts), pool=2), tolerance=1e-5)
    agree(*both(ConvNet().double(), parts_of(data.double(), counts)), tolerance=1e-12)


def check_a_rank_without_any_batch() -> None:
    for empty in (0, size() - 1):
        counts = [0 if number == empty else 2 for number in range(size())]
        joint, alone = both(Mlp().double(), parts_of(vectors(100).double(), counts))
        agree(joint, alone, tolerance=1e-12)
        assert (joint.example is None) == (rank() == empty)


def loss_by_brightness(model: nn.Module, batch: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(batch), (batch.mean((1, 2, 3)) > 0).long())


def check_gradients_add_up_like_inputs() -> None:
    counts, data = [number % 3 for number in range(1, size() + 1)], images(80).double()
    for narrowed in (4096, 4):  # as sums, and as samples
        with narrow(narrowed, 16384):
            joint, alone = both(ConvNet().double(), parts_of(data, counts), gradients=loss_by_brightness)
            assert list(joint.gradients) == list(alone.gradients) == list(alone.layers)
            for name in alone.layers:
                assert joint.gradients[name].count == alone.gradients[name].count
                near(joint.gradient_moments(name), alone.gradient_moments(name), 1e-12)
    error = raised(lambda: pcn.analyze(Mlp(), [vectors(8)], group=dist.group.WORLD, gradients=rank() == 0))
    assert "other layers or with other options" in str(error)


def check_large_means_that_differ_between_ranks() -> None:
    data = [[vectors(20).double() + 1000 * (number + 1)] for number in range(size())]
    model = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 3)).double()
    agree(*both(model, data), tolerance=1e-10)


def check_samples_are_gathered_while_all_of_them_fit() -> None:
    with narrow(4, 100):
        joint, alone = both(Mlp().double(), parts_of(vectors(60).double(), [1] * size()))
        assert isinstance(joint.moments["fc2"], Samples)
        agree(joint, alone, tolerance=1e-12)


def check_samples_become_sums_when_all_together_are_too_many() -> None:
    parts = parts_of(vectors(60).double(), [2] * size())  # 9 a rank, of 12 inputs
    with narrow(4, 100):
        assert isinstance(pcn.analyze(Mlp().double(), parts[rank()]).moments["fc1"], Samples)
        joint, alone = both(Mlp().double(), parts)
        assert isinstance(joint.moments["fc1"], Covariance)
        agree(joint, alone, tolerance=1e-12)


def check_sketches_are_refined_together() -> None:
    counts = [3 + number for number in range(size() - 1)] + [0]
    parts = parts_of(vectors(500).double(), counts, smallest=30)
    with narrow(4, 4):
        for passes in (None, 1):
            joint, alone = both(Mlp(60).double(), parts, max_rank=5, passes=passes)
            sketch = joint.moments["fc2"]
            assert isinstance(sketch, Sketch)
            assert same_everywhere(_digest(sketch.test))
            ours, theirs = joint.spectrum("fc2").leading(5), alone.spectrum("fc2").leading(5)
            near(ours[0], theirs[0], 1e-9)
            near(ours[1] @ ours[1].mT, theirs[1] @ theirs[1].mT, 1e-6)


def check_batches_that_come_once_on_one_rank_mean_one_pass_for_all() -> None:
    parts = parts_of(vectors(500).double(), [3] * size(), smallest=30)
    batches = iter(parts[rank()]) if rank() == 1 else parts[rank()]
    model = Mlp(60).double()
    with narrow(4, 4):
        joint = pcn.analyze(model, batches, max_rank=5, group=dist.group.WORLD)
        alone = pcn.analyze(model, [batch for own in parts for batch in own], max_rank=5, passes=1)
        near(joint.spectrum("fc2").leading(5)[0], alone.spectrum("fc2").leading(5)[0], 1e-9)
        batches = iter(parts[rank()]) if rank() == 1 else parts[rank()]
        error = raised(lambda: pcn.analyze(model, batches, max_rank=5, passes=2, group=dist.group.WORLD))
        assert "iterated only once" in str(error)


def alternating() -> Parts:
    """A batch for every rank, beginning with a negative number on even ranks and a positive one on odd ranks."""
    data = vectors(60, 6).double()
    data[:, 0] = data[:, 0].abs()
    parts = parts_of(data, [1] * size())
    return [[batch if number % 2 else -batch for batch in own] for number, own in enumerate(parts)]


def check_layers_that_only_some_ranks_call() -> None:
    parts = alternating()
    joint, alone = both(Routed().double(), parts)
    assert set(joint.layers) == {"left", "right", "both"}
    agree(joint, alone, tolerance=1e-12)
    positive = [[batch.abs() for batch in own] for own in parts]
    assert "never called" in both(Routed().double(), positive)[0].left_alone["right"]


def check_sharing_is_one_decision() -> None:
    parts = alternating()
    joint, alone = both(Shared().double(), parts)
    assert joint.layers["first"] == joint.layers["second"] == "second"  # so the first rank calls it
    agree(joint, alone, tolerance=1e-12)
    model = Shared().double()
    model.apart = rank() == 1
    error = raised(lambda: pcn.analyze(model, parts[rank()], group=dist.group.WORLD))
    assert isinstance(error, pcn.StatisticsError)
    assert "read one activation on rank 1" in str(error)


def check_what_fails_on_one_rank_raises_on_all() -> None:
    def analyzed(batches: object, **options: object) -> Exception:
        return raised(lambda: pcn.analyze(Mlp(), batches, group=dist.group.WORLD, **options))

    good, odd = [vectors(8)], rank() == 1
    for kind, error in (
        (pcn.StatisticsError, analyzed([torch.full((4, 12), torch.nan)] if odd else good)),
        (pcn.StatisticsError, analyzed([vectors(8, 5)] if odd else good)),
        (pcn.ConfigError, analyzed(vectors(8) if odd else good)),
        (pcn.ConfigError, analyzed(good, pool=0 if odd else None)),
    ):
        assert isinstance(error, kind), error
        assert ("on rank 1: " in str(error)) == (not odd), error
    for kind, text, error in (
        (pcn.StatisticsError, "no batch", analyzed([])),
        (pcn.ConfigError, "other layers or with other options", analyzed(good, max_rank=5 if odd else 6)),
        (pcn.ConfigError, "other layers or with other options", analyzed(good, exclude="fc1" if odd else ())),
    ):
        assert isinstance(error, kind), error
        assert text in str(error), error

    def breaks() -> Iterator[Tensor]:
        yield from good
        raise OSError("the disk is gone")

    error = analyzed(breaks() if odd else good)
    assert isinstance(error, OSError if odd else pcn.PCNError)
    assert "the disk is gone" in str(error)


def check_a_group_of_some_ranks() -> None:
    members = list(range(size()))[1:]
    group = dist.new_group(members)
    model, parts = Mlp().double(), parts_of(vectors(60).double(), [1] * size())
    if rank() in members:
        joint = pcn.analyze(model, parts[rank()], group=group)
        alone = pcn.analyze(model, [batch for member in members for batch in parts[member]])
        agree(joint, alone, tolerance=1e-12)
    else:
        assert "not in the group" in str(raised(lambda: pcn.analyze(model, parts[rank()], group=group)))
    everyones(None)


if __name__ == "__main__":
    run_checks(globals())
