"""Batch norm's running statistics, measured anew: the plain average over the batches, and nothing else changes."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from small import record
from switching.loop import CONFIG, convolutional, images


def seen_by(model: nn.Sequential, norm: int, batches: list[Tensor]) -> list[Tensor]:
    """What a batch norm is given when the norms before it use each batch's own statistics, and no dropout is on."""
    parts = model[:norm]
    for part in parts:
        part.train(isinstance(part, nn.BatchNorm2d))
    with torch.no_grad():
        return [parts(batch) for batch in batches]


@settings(max_examples=15)
@given(st.lists(st.integers(2, 9), min_size=1, max_size=4), st.sampled_from([None, 0.1, 0.9]), st.booleans())
def test_they_are_the_average_over_the_batches(sizes: list[int], momentum: float | None, training: bool) -> None:
    torch.manual_seed(0)
    model = convolutional(dropout=0.5).train(training)
    for norm in (model[1], model[5]):
        norm.momentum = momentum
        nn.init.normal_(norm.running_mean)
    batches = [images(seed, size)[0] for seed, size in enumerate(sizes)]
    assert pcn.recalibrate_(model, iter(batches)) == len(sizes)
    assert [m.training for m in model.modules()] == [training] * len(list(model.modules()))
    for position in (1, 5):
        norm = model[position]
        assert norm.momentum == momentum
        given = seen_by(model, position, batches)
        means = torch.stack([x.mean((0, 2, 3)) for x in given])
        variances = torch.stack([x.var((0, 2, 3)) for x in given])
        torch.testing.assert_close(norm.running_mean, means.mean(0))
        torch.testing.assert_close(norm.running_var, variances.mean(0))
        assert norm.num_batches_tracked == len(sizes)
        model.train()


def test_a_batch_without_samples_does_not_count() -> None:
    model, batch = nn.Sequential(nn.BatchNorm1d(2)), torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    assert pcn.recalibrate_(model, [torch.zeros(0, 2), batch]) == 1
    assert model[0].running_mean.tolist() == [1.0, 2.0]


def test_eval_mode_changes_and_train_mode_does_not() -> None:
    model, x = convolutional(), images(0)[0]
    outputs = []
    for _ in range(2):
        outputs.append((model.train()(x), model.eval()(x)))
        pcn.recalibrate_(model, [images(n)[0] for n in range(1, 4)])
    assert torch.equal(outputs[0][0], outputs[1][0])
    assert not torch.allclose(outputs[0][1], outputs[1][1])


def test_after_a_switch_they_are_those_of_the_new_network() -> None:
    model = convolutional()
    batches = [images(n)[0] for n in range(3)]
    switch = pcn.Switch(model, torch.optim.SGD(model.parameters(), lr=0.1), CONFIG, recalibrate=True)
    assert switch.after_epoch(1, iter(batches)) is not None
    means = torch.stack([model[0](x).mean((0, 2, 3)) for x in batches])
    torch.testing.assert_close(model[1].running_mean, means.mean(0).detach())


@pytest.mark.parametrize("at", [2, pcn.SubspacesSettle(within=0.99)])
def test_batches_that_can_be_iterated_only_once_are_enough(at: int | pcn.SubspacesSettle) -> None:
    model = convolutional()
    switch = pcn.Switch(model, None, CONFIG, at=at, recalibrate=True)
    for epoch in (1, 2):
        nn.init.normal_(model[0].weight)
        plan = switch.after_epoch(epoch, iter([images(0)[0], images(1)[0]]))
    assert plan is not None
    assert model[1].num_batches_tracked == 2


def failing(batches: list[Tensor]) -> Iterator[Tensor]:
    yield from batches
    raise KeyboardInterrupt


def test_an_error_midway_leaves_everything_as_it_was() -> None:
    model = convolutional(dropout=0.5)
    model(images(0)[0])
    model[5].eval()
    before, random = record(model), torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        pcn.recalibrate_(model, failing([images(1)[0]]))
    with pytest.raises(pcn.StatisticsError, match="no batch"):
        pcn.recalibrate_(model, [])
    assert record(model) == before
    assert torch.equal(torch.get_rng_state(), random)


def test_random_numbers_go_on_as_if_nothing_had_happened() -> None:
    loader = torch.utils.data.DataLoader(images(0)[0], batch_size=8, shuffle=True)
    random = torch.get_rng_state()
    pcn.recalibrate_(convolutional_with_noise(), loader)
    assert torch.equal(torch.get_rng_state(), random)


def convolutional_with_noise() -> nn.Module:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = convolutional()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x + 0.1 * torch.randn_like(x))

    state = torch.get_rng_state()
    model = Noisy()
    torch.set_rng_state(state)
    return model


def test_a_model_without_running_statistics_is_left_alone() -> None:
    def no_batches() -> Iterator[Tensor]:
        raise AssertionError("nothing need go through it")
        yield

    assert pcn.recalibrate_(nn.Sequential(nn.Linear(3, 3)), no_batches()) == 0
    assert pcn.recalibrate_(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)), no_batches()) == 0


def test_norms_that_do_not_track_or_see_no_batch_keep_what_they_have() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
            self.still = nn.BatchNorm1d(3)
            self.still.track_running_stats = False

        def forward(self, x: Tensor) -> Tensor:
            return self.still(self.used(x))

    model = Two()
    for norm in model.children():
        nn.init.normal_(norm.running_mean)
    kept = [model.unused.running_mean.clone(), model.still.running_mean.clone()]
    x = torch.randn(8, 3)
    pcn.recalibrate_(model, [x])
    torch.testing.assert_close(model.used.running_mean, x.mean(0))
    assert torch.equal(model.unused.running_mean, kept[0])
    assert torch.equal(model.still.running_mean, kept[1])


def test_synchronised_norms_are_measured_too() -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(convolutional())
    assert type(model[1]) is nn.SyncBatchNorm
    x = images(0)[0]
    pcn.recalibrate_(model, [x])
    torch.testing.assert_close(model[1].running_mean, model[0](x).mean((0, 2, 3)).detach())


def test_a_switch_whose_recalibration_fails_leaves_everything_as_it_was() -> None:
    """The look, in eval mode, takes a batch of one sample, which batch norm in train mode does not."""
    model = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = list(torch.randn(65, 12).split(64))
    switch = pcn.Switch(model, optimizer, pcn.PCNConfig(rank=4, skip_larger=False), at=1, recalibrate=True)
    before = record(model)
    with pytest.raises(pcn.StatisticsError, match="one sample"):
        switch.after_epoch(1, batches)
    assert record(model) == before
    assert switch.plan is None
    assert switch.after_epoch(2, batches[:1]) is not None  # and can be tried again


def test_an_averaged_copy_is_recalibrated_too() -> None:
    model = convolutional()
    ema = copy.deepcopy(model)
    batches = [images(seed, 16)[0] for seed in range(2)]
    pcn.Switch(model, None, CONFIG, ema=ema, recalibrate=True).now(iter(batches))
    torch.testing.assert_close(ema.eval()(batches[0]), model.eval()(batches[0]))


def test_a_switch_whose_optimizer_cannot_follow_leaves_running_statistics_alone() -> None:
    model = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))
    optimizer, x = torch.optim.Adam(model.parameters()), torch.randn(64, 12)
    model(x).sum().backward()
    optimizer.step()
    optimizer.state[model[0].weight]["exp_avg"] = torch.zeros(5)  # no form that anybody knows
    before = record(model)
    with pytest.raises(RuntimeError):
        pcn.Switch(model, optimizer, pcn.PCNConfig(rank=4, skip_larger=False), recalibrate=True).now([x])
    assert record(model) == before
