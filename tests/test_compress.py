"""The front door: look, plan and apply in one call, in the ways that people will use it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pcn
from pcn.costs.count import count
from pcn.nn import PCLinear
from small import WIDTH, Mlp, conv_net, distance, images, record, vectors


def test_one_call_is_the_three_steps() -> None:
    first, second, x = Mlp(), Mlp(), vectors()
    second.load_state_dict(first.state_dict())
    config = pcn.PCNConfig(rank=0.25, exclude=["fc1"])
    plan = pcn.compress_(first, [x], config)
    stats = pcn.analyze(second, [x])
    assert pcn.make_plan(second, stats, config).apply_(second, stats) == plan
    assert torch.equal(first(x), second(x))
    assert pcn.get_plan(first) is plan


def test_without_its_underscore_it_is_no_module_and_its_name_is_advised() -> None:
    with pytest.raises(AttributeError, match="module 'pcn' has no attribute 'compress'") as raised:
        pcn.compress(Mlp(), [vectors()], params=0.25)
    assert (raised.value.name, raised.value.obj) == ("compress", pcn)  # of which Python makes its advice
    if sys.version_info >= (3, 12):  # before, only what prints it knew
        assert "Did you mean: 'compress_'?" in traceback.format_exception_only(raised.value)[0]


def test_directions_that_no_sample_has_shown_are_warned_of_once_and_stand_in_the_plan() -> None:
    model, x = Mlp(), vectors(6)
    stats = pcn.analyze(model, [x])
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=0.5))  # nothing is lost yet: a note is enough
    with pytest.warns(UserWarning, match=r"'fc\d': 6 samples of \d+ inputs show 5 directions, .* are made up") as told:
        assert pcn.compress_(model, [x], pcn.PCNConfig(rank=0.5)) == plan
    assert [each.filename for each in told] == [__file__]
    assert any("made up" in (layer.note or "") for layer in plan.transformed)


def test_by_default_nearly_all_the_variance_stays() -> None:
    model, x = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5)), vectors()
    before = model(x)
    plan = pcn.compress_(model, [x])
    assert plan.trainable_after < 0.6 * plan.trainable_before
    assert distance(model(x) - model(x).mean(0), before - before.mean(0)) < 0.5


def test_training_goes_on_with_the_same_optimizer() -> None:
    model, x = Mlp(), vectors()
    targets = torch.randint(5, (len(x),))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    losses = []
    for epoch in range(20):
        if epoch == 8:
            pcn.compress_(model, [(x, targets)], pcn.PCNConfig(rank=4, exclude=["fc1"]), optimizer=optimizer)
        loss = nn.functional.cross_entropy(model(x), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    assert losses[-1] < losses[7] < losses[0]
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x, None), lambda x: {"x": x}, lambda x: ((x,), None)])
def test_batches_come_in_many_shapes(wrap: Any) -> None:
    model, x = Mlp(), vectors()
    plan = pcn.compress_(model, [wrap(x)], pcn.PCNConfig(rank=3))
    assert model.fc2.rank == plan.layers["fc2"].rank == 3


def test_ones_own_forward_function() -> None:
    model, x = Mlp(), vectors()

    def forward(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return model(batch["nested"][0]).sum()

    plan = pcn.compress_(model, [{"nested": [x]}], pcn.PCNConfig(rank=3), forward=forward)
    assert len(plan.transformed) == 3


def test_what_is_excluded_is_not_even_looked_at() -> None:
    class Overflowing(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc3(self.fc2(self.fc1(x) / 0).nan_to_num(0.0, 1.0, -1.0))

    model, x = Overflowing(), vectors()
    with pytest.raises(pcn.StatisticsError, match="'fc2'"):
        pcn.compress_(model, [x])
    plan = pcn.compress_(model, [x], pcn.PCNConfig(rank=2, exclude=["fc2"]))
    assert plan.layers["fc2"].reason == "excluded by 'fc2'"
    assert [layer.name for layer in plan.transformed] == ["fc1", "fc3"]


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (pcn.PCNConfig(exclude=["fc9"]), pcn.ConfigError),
        (pcn.PCNConfig(layers={"fc?": pcn.LayerRule(rank=1000)}), pcn.ConfigError),
        (pcn.PCNConfig(layers={"fc1": pcn.LayerRule(keep_outputs=5)}, exclude=["fc2"]), pcn.ConfigError),
    ],
)
def test_what_cannot_be_done_changes_nothing(config: pcn.PCNConfig, error: type[Exception]) -> None:
    model = Mlp()
    before = record(model)
    with pytest.raises(error):
        pcn.compress_(model, [vectors()], config)
    assert record(model) == before


def test_no_batches_and_no_layers_are_refused() -> None:
    with pytest.raises(pcn.StatisticsError, match="there was no batch"):
        pcn.compress_(Mlp(), [])
    with pytest.raises(pcn.StatisticsError, match="no layer to look at"):
        pcn.compress_(nn.Sequential(nn.ReLU()), [vectors()])


def test_from_training_to_shipping(tmp_path: Any) -> None:
    """Compress, save, load, export to stock layers, fold: always the same function."""
    model, x = conv_net(), images()
    config = pcn.PCNConfig(
        rank=0.5, layers={"conv1": pcn.LayerRule(keep_outputs=5), "conv2": pcn.LayerRule(rank=3)}, skip_larger=False
    )
    print_out = str(pcn.compress_(model, [x], config))
    assert "8 -> 5" in print_out
    expected = model(x)
    pcn.save(model, tmp_path / "small")
    loaded = pcn.load(conv_net(), tmp_path / "small")
    assert torch.equal(loaded(x), expected)
    assert distance(pcn.to_plain(loaded)(x), expected) < 1e-5
    pcn.fold_(loaded)
    assert distance(loaded(x), expected) < 1e-5
    fresh = conv_net()
    fresh.conv3.bias = nn.Parameter(torch.zeros(8))  # it gained one, and has no batch norm to hide it in
    fresh.load_state_dict(loaded.state_dict())
    assert torch.equal(fresh(x), loaded(x))


def test_a_second_network_from_the_same_plan() -> None:
    model, x = Mlp(), vectors()
    plan = pcn.compress_(model, [x], pcn.PCNConfig(rank=2))
    fresh = Mlp()
    pcn.Plan.from_json(plan.to_json()).reshape_(fresh)
    fresh.load_state_dict(model.state_dict())
    assert isinstance(fresh.fc2, PCLinear)
    assert torch.equal(fresh(x), model(x))


class Masked(nn.Module):
    """Takes a mask, or none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(WIDTH, 64), nn.BatchNorm1d(64), nn.Linear(64, 5)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.second(x if mask is None else x * mask[:, None])


def test_a_mask_between_inputs_and_targets_is_not_left_out_without_a_word() -> None:
    x, mask = vectors(64), torch.arange(64).remainder(2).float()
    batches = [(x, mask, torch.zeros(64, dtype=torch.long))]
    ways: dict[str, Callable[[nn.Module, Any], object]] = {
        "analyze": lambda model, forward: pcn.analyze(model, batches, forward=forward),
        "gradients": lambda model, forward: pcn.analyze(model, batches, forward=forward, gradients=True),
        "recalibrate": lambda model, forward: pcn.recalibrate_(model, batches, forward),
        "costs": lambda model, forward: pcn.measure_costs(model, batches[0], forward=forward),
        "compress": lambda model, forward: pcn.compress_(model, batches, pcn.PCNConfig(rank=4), forward=forward),
        "switch": lambda model, forward: pcn.Switch(model, None, pcn.PCNConfig(rank=4), forward=forward).now(batches),
    }
    for way in ways.values():
        with pytest.warns(UserWarning, match=r"Masked takes \(x, mask\): say what goes in with forward="):
            way(Masked(), None)
        way(Masked(), lambda model, batch: model(batch[0], batch[1]))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0], batch[1]), batch[2])

    assert pcn.analyze(Masked(), batches, gradients=loss).gradients  # it calls the model itself


def test_a_model_that_is_frozen_is_left_alone_aloud() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).requires_grad_(False)
    with pytest.warns(UserWarning, match="compress_ changes no layer: its weight is frozen"):
        pcn.compress_(model, [torch.randn(256, 64)], params=0.25)


def test_frozen_layers_are_not_counted_as_trained() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    model[0].requires_grad_(False)
    trained = count(model).trainable
    stats = pcn.analyze(model, [torch.randn(256, 64)])
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=8))
    assert (plan.trainable_before, plan.layers["0"].size_before) == (trained, 64 * 65)
    assert pcn.Plan.from_json(plan.to_json()) == plan
    assert f"{64 * 65:,} ->" not in str(plan).splitlines()[1]
    assert "frozen" in str(plan).splitlines()[1]
    assert str(stats).splitlines()[3].split()[3:] == ["0", "0"]  # of what it would save
    plan.apply_(model, stats)
    assert plan.trainable_after == count(model).trainable


def test_parameters_that_lie_side_by_side_in_one_vector_are_not_tied() -> None:
    model, x = Mlp(), vectors()
    vector = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    nn.utils.vector_to_parameters(vector, model.parameters())
    plan = pcn.compress_(model, [x], pcn.PCNConfig(rank=4))
    assert plan.transformed
    assert all(isinstance(model.get_submodule(layer.name), PCLinear) for layer in plan.transformed)


def test_an_averaged_copy_follows_and_what_cannot_is_refused_when_strict() -> None:
    model, x = Mlp(), vectors(64)
    average = torch.optim.swa_utils.AveragedModel(model)
    pcn.compress_(model, [x], pcn.PCNConfig(rank=0.5), ema=average)
    torch.testing.assert_close(average(x), model(x))
    other = Mlp()
    optimizer = torch.optim.RMSprop(other.parameters(), 0.01)
    with pytest.raises(pcn.PlanError, match="RMSprop is not"):
        pcn.compress_(other, [x], pcn.PCNConfig(rank=0.5), optimizer=optimizer, strict=True)


class OneByOne(nn.Module):
    """Hands its samples to its layers by torch.vmap, or all at once."""

    def __init__(self, mapped: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mapped = mapped
        self.conv, self.first, self.last = nn.Conv2d(3, 16, 3), nn.Linear(64, 64), nn.Linear(64, 5)

    def one(self, x: Tensor) -> Tensor:
        images = self.conv(x).relu().amax(-1)
        return self.last(self.first(images.flatten(-2)).relu())

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(self.one)(x) if self.mapped else self.one(x)


def test_layers_inside_vmap_are_measured_over_all_samples() -> None:
    x = torch.randn(100, 3, 6, 6)
    models = [OneByOne(mapped) for mapped in (True, False)]
    for model in models:
        pcn.compress_(model, x.split(50), params=0.6)
    torch.testing.assert_close(models[0](x), models[1](x))
    assert isinstance(models[0].first, PCLinear)
