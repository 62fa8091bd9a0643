"""Folding gives back the architecture that there was, with the function that there is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

import pcn
from new_coordinates import MODELS, batch, planned
from pcn import (
    LayerPlan,
    LayerRule,
    PCNConfig,
    Plan,
    PlanError,
    analyze,
    compress_,
    fold_,
    get_plan,
    make_plan,
    to_plain,
)
from pcn.config import ORDERS, Order
from pcn.layers import LAYER_TYPES, TYPE_OF, LayerType
from pcn.nn import PCLinear, PCModule
from pcn.nn.build import LAYERS
from pcn.plans.plan import Cut
from small import ConvNet, Mlp, Residual, conv_net, distance, images, record, step, vectors


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def transform_(model: nn.Module, x: Tensor, config: PCNConfig) -> nn.Module:
    stats = analyze(model, [x])
    make_plan(model, stats, config).apply_(model, stats)
    return model


def halves(**options: object) -> PCNConfig:
    """Half of the directions, and half of the outputs wherever that can be."""
    return PCNConfig(**{"rank": 0.5, "keep_outputs": 0.5, "skip_larger": False, **options})


def train_a_little(model: nn.Module, x: Tensor) -> None:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
    model.eval()


@settings(max_examples=8)
@given(st.floats(0.05, 1), st.floats(0.2, 1), st.sampled_from(ORDERS), st.booleans(), st.booleans(), st.booleans())
def test_the_same_function_in_the_old_shapes(
    rank: float, keep: float, order: Order, train_basis: bool, keep_dropped: bool, train: bool
) -> None:
    model, x = conv_net().double(), images().double()
    before = shapes(model)
    options = {"order": order, "train_basis": train_basis, "keep_dropped": keep_dropped}
    transform_(model, x, halves(rank=rank, keep_outputs=keep, **options))
    if train:
        train_a_little(model, x)
    expected = model(x)
    kept = fold_(model)
    assert kept == ["conv3"]  # no batch norm follows it
    assert {**before, "conv3.bias": torch.Size([8])} == shapes(model)
    assert distance(model(x), expected) < 1e-12
    assert not any(isinstance(module, PCModule) for module in model.modules())
    assert get_plan(model) is None


@pytest.mark.parametrize("make", [Mlp, Residual])
def test_dense_layers_with_biases_fold_without_a_remainder(make: type[nn.Module]) -> None:
    model, x = make().double(), vectors().double()
    before = shapes(model)
    expected = transform_(model, x, halves())(x)
    assert fold_(model) == []
    assert shapes(model) == before
    assert list(model.state_dict()) == list(make().state_dict())
    assert distance(model(x), expected) < 1e-12


def test_folded_layers_say_their_old_sizes() -> None:
    model, x = conv_net(), images()
    sizes = {name: repr(module) for name, module in conv_net().named_modules() if not list(module.children())}
    transform_(model, x, halves())
    fold_(model)
    found = {name: repr(module) for name, module in model.named_modules() if not list(module.children())}
    assert found.pop("conv3") == sizes.pop("conv3").replace(", bias=False", "")
    assert found == sizes


def test_the_bias_goes_into_the_batch_norm_also_after_training() -> None:
    model, x = conv_net().double(), images().double()
    transform_(model, x, PCNConfig(rank=0.5, skip_larger=False))
    train_a_little(model, x)
    expected, means = model(x), model.bn2.running_mean.clone()
    bias = model.conv2.bias.detach().clone()
    fold_(model)
    assert model.conv1.bias is None
    assert model.conv2.bias is None
    assert not torch.equal(model.bn2.running_mean, means)
    assert bias.abs().max() > 0
    assert distance(model(x), expected) < 1e-12


def test_a_batch_norm_without_running_statistics_takes_any_bias_away() -> None:
    model, x = conv_net().double(), images().double()
    model.bn1 = nn.BatchNorm2d(8, track_running_stats=False).double()
    transform_(model, x, halves())
    expected = model(x)
    assert fold_(model) == ["conv3"]
    assert distance(model(x), expected) < 1e-10


def test_a_batch_norm_that_two_layers_share_takes_no_bias() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(12, 8, bias=False), nn.Linear(12, 8, bias=False)
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.left(x)) - self.norm(self.right(x))

    model, x = Shared().double().eval(), vectors().double()
    transform_(model, x, PCNConfig(rank=2, skip_larger=False))
    expected = model(x)
    assert sorted(fold_(model)) == ["left", "right"]
    assert distance(model(x), expected) < 1e-12


def test_a_batch_norm_that_also_normalises_something_else_takes_no_bias() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm = nn.Linear(12, 12, bias=False), nn.BatchNorm1d(12)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.fc(self.norm(x)))

    model, x = Twice().double().eval(), vectors().double()
    transform_(model, x, PCNConfig(rank=2, skip_larger=False))
    expected = model(x)
    fold_(model)
    assert distance(model(x), expected) < 1e-12


@pytest.mark.parametrize("steps", [5, 8])
def test_a_batch_norm_along_another_dimension_takes_no_bias(steps: int) -> None:
    class Sequences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm = nn.Linear(12, 8, bias=False), nn.BatchNorm1d(steps)  # over steps, not features

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.fc(x))

    model, x = Sequences().double().eval(), torch.randn(40, steps, 12).double() + 1
    transform_(model, x, PCNConfig(rank=2, skip_larger=False))
    expected = model(x)
    assert fold_(model) == ["fc"]
    assert distance(model(x), expected) < 1e-12


def test_a_batch_norm_that_is_gone_takes_no_bias() -> None:
    model, x = conv_net().double(), images().double()
    transform_(model, x, PCNConfig(rank=0.5, skip_larger=False))
    model.bn2 = nn.Identity()
    expected = model(x)
    assert fold_(model) == ["conv2", "conv3"]
    assert distance(model(x), expected) < 1e-12


def test_hooks_modes_and_frozen_weights_come_back_too() -> None:
    model, x = conv_net(), images()
    calls: list[int] = []
    model.conv3.register_forward_hook(lambda *_: calls.append(1))
    model.conv3.weight.requires_grad_(False)
    model.fc1.train()
    transform_(model, x, halves())
    calls.clear()
    fold_(model)
    model(x)
    assert calls == [1]
    assert not model.conv3.weight.requires_grad
    assert model.fc1.weight.requires_grad
    assert [name for name, module in model.named_modules() if module.training] == ["fc1"]


class Named(nn.Linear):
    """Computes as its parent does, and has a number more."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.scale = 1.0


@pytest.mark.parametrize("form", ["factored", "dense", "folded"])
def test_attributes_that_were_hung_on_a_layer_go_along_and_come_back(form: str) -> None:
    model = nn.Sequential(Named(12, 24), nn.Tanh(), nn.Linear(24, 5), nn.Unflatten(1, (5, 1)), nn.Conv1d(5, 4, 1))
    model[0].scale, model[2].role, model[4].role = 0.1, ["head"], "last"
    attributes = {name: vars(module).keys() for name, module in model.named_modules()}
    transform_(model, vectors(64), PCNConfig(rank=0.5, skip_larger=False))
    parts = [model]
    parts += [to_plain(model, form)] if form != "folded" else []
    for part in parts:
        assert (part[0].scale, part[2].role, part[4].role) == (0.1, ["head"], "last")
    if form == "folded":
        model[2].later = True
        fold_(model)
        assert (model[0].scale, model[2].role, model[4].role, model[2].later) == (0.1, ["head"], "last", True)
        del model[2].later
        assert {name: vars(module).keys() for name, module in model.named_modules()} == attributes


def test_subclasses_that_compute_as_their_parents_come_back_as_themselves() -> None:
    model = nn.Sequential(Named(12, 24), nn.Tanh(), nn.Linear(24, 5))
    x = vectors(64)
    transform_(model, x, PCNConfig(rank=0.5, skip_larger=False))
    assert type(model[0]) is PCLinear
    model, expected = copy.deepcopy(model), model(x)
    fold_(model)
    assert [type(module) for module in model] == [Named, nn.Tanh, nn.Linear]
    assert distance(model(x), expected) < 1e-5


class Scaled(nn.Linear):
    rate = 1.0


class Slotted(nn.Linear):
    __slots__ = ("note",)


class Standardised(nn.Conv1d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight - weight.mean(), bias)


def test_odd_subclasses_come_back_or_stay() -> None:
    model = nn.Sequential(
        Scaled(12, 24), nn.Tanh(), Slotted(24, 8), nn.Tanh(), nn.Unflatten(1, (8, 1)), Standardised(8, 8, 1)
    )
    model[0].rate = 10.0  # in place of the class's
    x, own = vectors(64), model[5]
    expected = transform_(model, x, PCNConfig(rank=0.5, skip_larger=False))(x)
    assert (type(model[0]), type(model[2]), model[5], model[0].rate) == (PCLinear, PCLinear, own, 10.0)
    fold_(model)
    assert (type(model[0]), type(model[2]), model[5], model[0].rate) == (Scaled, nn.Linear, own, 10.0)
    assert distance(model(x), expected) < 1e-5


def test_a_shared_module_stays_shared() -> None:
    class Twice(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.again = self.fc2

        def forward(self, x: Tensor) -> Tensor:
            return self.fc3(torch.tanh(self.again(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))))

    model, x = Twice().double(), vectors().double()
    expected = transform_(model, x, PCNConfig(rank=3))(x)
    fold_(model)
    assert type(model.fc2) is nn.Linear
    assert model.fc2 is model.again
    assert distance(model(x), expected) < 1e-12


def test_a_depthwise_convolution_of_which_one_channel_was_left_comes_back() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, groups=6, bias=False), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1)
    )
    layers = [
        LayerPlan("0", "conv2d", 3, 6, kernel=(1, 1), kept_outputs=1),
        LayerPlan("1", "conv2d", 6, 6, 6, kernel=(3, 3), bias=False, kept_inputs=1, kept_outputs=1),
        LayerPlan("3", "conv2d", 6, 4, kernel=(1, 1), rank=1, kept_inputs=1),
    ]
    cut = {0: Cut(6, (2,))}
    cut_tensors = ("0.weight", "0.bias", "1.weight", "2.weight", "2.bias", "2.running_mean", "2.running_var")
    plan = Plan({layer.name: layer for layer in layers}, {**dict.fromkeys(cut_tensors, cut), "3.weight": {1: cut[0]}})
    back_and_forth(plan, model.eval().double())
    assert (model[1].groups, model[1].in_channels) == (6, 6)


def test_a_grouped_convolution_of_which_one_channel_a_group_was_left_comes_back() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=4), nn.ReLU(), nn.Conv2d(8, 4, 1))
    layers = [
        LayerPlan("0", "conv2d", 3, 8, kernel=(1, 1), kept_outputs=4),
        LayerPlan("1", "conv2d", 8, 8, 4, kernel=(3, 3), rank=1, kept_inputs=4, kept_outputs=4),
        LayerPlan("3", "conv2d", 8, 4, kernel=(1, 1), rank=2, kept_inputs=4),
    ]
    cut, grouped = Cut(8, (1, 3, 5, 7)), {0: Cut(8, (0, 2, 4, 6)), 1: Cut(2, (1,))}
    slices = {"0.weight": {0: cut}, "0.bias": {0: cut}, "1.weight": grouped, "1.bias": {0: grouped[0]}}
    plan = Plan({layer.name: layer for layer in layers}, {**slices, "3.weight": {1: grouped[0]}})
    back_and_forth(plan, model.double())
    assert (model[1].groups, model[1].in_channels, model[1].out_channels) == (4, 8, 8)


def back_and_forth(plan: Plan, model: nn.Module) -> None:
    """Apply a plan and fold the model again."""
    x, before = images().double(), shapes(model)
    plan.apply_(model, analyze(model, [x]))
    assert shapes(model) != before
    expected = model(x)
    assert fold_(model) == []
    assert shapes(model) == before
    assert distance(model(x), expected) < 1e-12


def test_transformers_conv1d_comes_back_as_itself() -> None:
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    model = nn.Sequential(conv1d(20, 12), nn.GELU(), conv1d(20, 20), nn.GELU(), conv1d(5, 20)).double()
    for layer in (model[0], model[2], model[4]):
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    x = vectors().double()
    before = shapes(model)
    transform_(model, x, halves())
    assert sum(isinstance(module, PCModule) for module in model) == 3
    expected, random = model(x), torch.get_rng_state()
    assert fold_(model) == []
    assert torch.equal(torch.get_rng_state(), random)
    assert all(type(model[i]) is conv1d for i in (0, 2, 4))
    assert shapes(model) == before
    assert (model[2].nx, model[2].nf) == (20, 20)
    assert distance(model(x), expected) < 1e-12


def test_a_folded_model_can_be_transformed_again() -> None:
    model, x = Mlp().double(), vectors().double()
    transform_(model, x, PCNConfig(rank=4))
    expected = model(x)
    fold_(model)
    transform_(model, x, PCNConfig(rank=1.0, skip_larger=False))
    assert distance(model(x), expected) < 1e-12


def test_folded_weights_load_into_the_model_that_there_was() -> None:
    model, x = Mlp().double(), vectors().double()
    expected = transform_(model, x, halves())(x)
    fold_(model)
    fresh = Mlp().double()
    fresh.load_state_dict(model.state_dict())
    assert distance(fresh(x), expected) < 1e-12


def test_a_wrapped_model_is_folded_inside() -> None:
    model, x = Mlp(), vectors()
    transform_(model, x, PCNConfig(rank=2))
    fold_(nn.DataParallel(model))
    assert type(model.fc2) is nn.Linear


def test_what_cannot_be_folded_is_refused_and_left_alone() -> None:
    with pytest.raises(PlanError, match="carries no plan"):
        fold_(Mlp())
    model, x = conv_net(), images()
    transform_(model, x, halves())
    for change, message in [
        (lambda m: setattr(m, "conv2", nn.Conv2d(4, 6, 3)), "'conv2' is no longer a principal component layer"),
        (lambda m: delattr(m, "fc2"), "'fc2' is no longer"),
        (lambda m: setattr(m, "bn1", nn.Identity()), r"no longer has 'bn1.\w+', which its plan has cut"),
    ]:
        broken: ConvNet = copy.deepcopy(model)
        change(broken)
        before = record(broken)
        with pytest.raises(PlanError, match=message):
            fold_(broken)
        assert record(broken) == before


FOLDED = [(kind, order) for kind in MODELS for order in (None, *ORDERS)]


def test_the_part_that_carries_a_plan_is_named() -> None:
    x = vectors()
    averaged = torch.optim.swa_utils.AveragedModel(transform_(Mlp(), x, PCNConfig(rank=6)))
    with pytest.raises(PlanError, match="carries no plan: its part 'module' does: give that"):
        fold_(averaged)
    expected = averaged(x)
    fold_(averaged.module)
    assert distance(averaged(x), expected) < 1e-5


def test_a_model_that_is_folded_in_inference_mode_trains_on() -> None:
    model = transform_(conv_net(), images(), halves())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    changed_by_training(model, images(), optimizer)
    with torch.inference_mode():
        fold_(model, optimizer=optimizer)
    assert not any(tensor.is_inference() for tensor in model.state_dict().values())
    changed_by_training(model.train(), images(), optimizer)


def trained(kind: str, order: Order | None, momentum: float = 0.9) -> tuple[nn.Module, torch.optim.SGD]:
    """A network that was switched in the midst of its training, and its optimizer."""
    model, stats, plan = planned(kind, order)
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    for seed in range(4):
        if seed == 2:
            plan.apply_(model, stats, optimizer=optimizer, check=False)
        step(model, optimizer, batch(kind, seed))
    return model, optimizer


def momenta(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {name: optimizer.state[p]["momentum_buffer"].clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(("kind", "order"), FOLDED)
def test_the_optimizer_goes_along_and_its_momentum_is_what_it_was_after_another_switch(
    kind: str, order: Order | None
) -> None:
    _, stats, plan = planned(kind, order)
    model, optimizer = trained(kind, order)
    before = momenta(model, optimizer)
    fold_(model, optimizer=optimizer)
    (group,) = optimizer.param_groups
    assert [id(p) for p in group["params"]] == [id(p) for p in model.parameters()]
    assert set(optimizer.state) == set(model.parameters())
    folded = momenta(model, optimizer)
    assert all(folded[name].shape == parameter.shape for name, parameter in model.named_parameters())
    plan.apply_(model, stats, optimizer=optimizer, check=False)
    found = momenta(model, optimizer)
    assert found.keys() == before.keys()
    for name in found:
        if kind == "normalised" and name in ("0.bias", "3.bias"):  # before batch norm, which takes it over
            assert not found[name].any()
            assert before[name].abs().max() < 1e-12
        else:
            torch.testing.assert_close(found[name], before[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", MODELS)
def test_at_full_rank_momentum_comes_back_as_it_was(kind: str) -> None:
    model = copy.deepcopy(planned(kind, None)[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for seed in range(3):
        step(model, optimizer, batch(kind, seed))
    before, parent = momenta(model, optimizer), copy.deepcopy(model)
    compress_(model, [batch(kind, 99, 64)[0]], PCNConfig(rank=1.0, skip_larger=False), optimizer=optimizer)
    assert any(isinstance(module, PCModule) for module in model.modules())
    assert fold_(model, optimizer=optimizer) == []
    assert list(before) == [name for name, _ in model.named_parameters()]
    for name, found in momenta(model, optimizer).items():
        torch.testing.assert_close(found, before[name], rtol=1e-9, atol=1e-12)
    parents = torch.optim.SGD(parent.parameters(), lr=0.05, momentum=0.9)
    for name, parameter in parent.named_parameters():
        parents.state[parameter]["momentum_buffer"] = before[name].clone()
    for seed in range(3, 8):
        data = batch(kind, seed)
        assert step(model, optimizer, data) == pytest.approx(step(parent, parents, data), rel=1e-9)


def test_every_layer_trains_on_after_folding_and_ranks_can_be_changed() -> None:
    model, x = Mlp(), vectors()
    body = torch.optim.SGD(model.fc1.parameters(), 0.1, momentum=0.9)
    head = torch.optim.Adam([*model.fc2.parameters(), *model.fc3.parameters()])
    for rank in (3, 6, 2):
        plan = compress_(model, [x], PCNConfig(rank=rank, skip_larger=False), optimizer=[body, head])
        assert len(plan.transformed) == 3
        changed_by_training(model, x, body, head)
        with pytest.warns(
            UserWarning, match=r"^Adam is not SGD or Muon: its state for replaced parameters starts afresh"
        ):
            fold_(model, optimizer=[body, head])
        changed_by_training(model, x, body, head)


def changed_by_training(model: nn.Module, x: Tensor, *optimizers: torch.optim.Optimizer) -> None:
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(2):
        model.zero_grad()
        (model(x) - 1).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert not any(torch.equal(new, old) for new, old in zip(model.parameters(), before, strict=True))


def test_a_trained_basis_leaves_its_group_and_momentum_starts_at_rest() -> None:
    model, x = Mlp(), vectors()
    optimizer = torch.optim.SGD(model.named_parameters(), 0.1, momentum=0.9)
    compress_(model, [x], PCNConfig(rank=3, train_basis=True, skip_larger=False), optimizer=optimizer)
    changed_by_training(model, x, optimizer)
    bias = optimizer.state[model.fc2.bias]["momentum_buffer"].clone()
    fold_(model, optimizer=optimizer)
    assert optimizer.param_groups[0]["param_names"] == [name for name, _ in Mlp().named_parameters()]
    assert not optimizer.state[model.fc2.weight]["momentum_buffer"].any()
    assert torch.equal(optimizer.state[model.fc2.bias]["momentum_buffer"], bias)
    changed_by_training(model, x, optimizer)


def test_hooks_and_attributes_of_parameters_come_back_too() -> None:
    model, x = Mlp(), vectors()
    seen: list[Tensor] = []
    model.fc2.weight.no_decay = True
    model.fc2.bias.register_hook(seen.append)
    transform_(model, x, PCNConfig(rank=3))
    fold_(model)
    model(x).sum().backward()
    assert model.fc2.weight.no_decay
    assert [gradient.shape for gradient in seen] == [model.fc2.bias.shape]


def test_an_optimizer_that_cannot_follow_leaves_the_model_as_it_was() -> None:
    model, x = Mlp(), vectors()
    transform_(model, x, PCNConfig(rank=3))
    before = record(model)
    for optimizer, message in [
        (torch.optim.LBFGS(model.parameters()), "LBFGS keeps one history"),
        (torch.optim.SGD(Mlp().parameters()), "none of the parameters"),
    ]:
        with pytest.raises(PlanError, match=message):
            fold_(model, optimizer=optimizer)
        assert record(model) == before


class OwnLinear(nn.Linear):
    """One with a forward function of its own, so that only an entry in TYPE_OF makes it known."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class PCOwnLinear(PCLinear):
    stock = OwnLinear


def test_a_layer_of_a_type_from_outside_says_its_old_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = LayerType("own_linear", spatial=0)
    monkeypatch.setitem(LAYER_TYPES, kind.kind, kind)
    monkeypatch.setitem(TYPE_OF, OwnLinear, kind)
    monkeypatch.setitem(LAYERS, kind.kind, PCOwnLinear)
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), OwnLinear(32, 32), nn.Tanh(), nn.Linear(32, 5))
    half = LayerRule(rank=8, keep_outputs=16)
    compress_(model, [vectors(99)], PCNConfig(rank=8, layers={"0": half, "2": half}, skip_larger=False))
    assert (model[2].in_features, model[2].out_features) == (16, 16)
    fold_(model)
    assert isinstance(model[2], OwnLinear)
    assert model[2].weight.shape == (model[2].out_features, model[2].in_features) == (32, 32)


def test_gathered_gradients_go_along_as_momentum_does() -> None:
    model, x = Mlp().double(), vectors(40).double()
    compress_(model, [x], PCNConfig(rank=6, skip_larger=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.0)
    model(x).square().sum().backward()
    twin = copy.deepcopy(model)
    optimizer.step()  # from rest: what is remembered is this very gradient
    model.load_state_dict(twin.state_dict())
    fold_(model, optimizer=optimizer)
    for parameter in model.parameters():
        torch.testing.assert_close(parameter.grad, optimizer.state[parameter]["momentum_buffer"])


def test_a_layer_put_in_the_place_of_one_that_stayed_keeps_its_sizes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Conv2d(32, 4, 1))
    x = images(8)
    transform_(model, x, PCNConfig(layers={"2": LayerRule(rank=8)}))
    model[4] = nn.Conv2d(32, 8, 1, groups=4)
    expected = model(x)
    fold_(model)
    assert (model[4].out_channels, model[4].groups) == (8, 4)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)


class Domains(nn.Module):
    """Which batch norm follows the convolution depends on an argument; its output may be asked for as well."""

    def __init__(self, norms: int) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(norms))

    def forward(self, x: Tensor, domain: int = 0, features: bool = False) -> Tensor:
        y = self.conv(self.stem(x).relu())
        return y if features else self.norms[domain](y).relu().mean((2, 3))


def domains(norms: int) -> tuple[Domains, Tensor]:
    torch.manual_seed(0)
    model, x = Domains(norms).double(), torch.randn(64, 3, 8, 8).double() + 0.5
    compress_(model, [x], PCNConfig(rank=0.5, exclude=["stem"]))
    train_a_little(model, x)
    return model, x


def test_a_bias_stays_where_another_norm_may_follow() -> None:
    model, x = domains(norms=2)
    expected = [model(x, domain) for domain in range(2)]
    assert fold_(model) == ["conv"]
    for domain, before in enumerate(expected):
        assert distance(model(x, domain), before) < 1e-10


@pytest.mark.parametrize("how", ["hooked", "asked"])
def test_a_bias_stays_where_somebody_sees_the_output(how: str) -> None:
    model, x = domains(norms=1)
    seen: list[Tensor] = []
    if how == "hooked":
        model.conv.register_forward_hook(lambda module, given, output: seen.append(output))
    expected = model(x, features=True)
    assert fold_(model, keep_biases=how == "asked") == ["conv"]
    assert distance(model(x, features=True), expected) < 1e-10
    assert len(seen) == (2 if how == "hooked" else 0)


def test_with_one_norm_its_running_mean_takes_the_bias() -> None:
    model, x = domains(norms=1)
    expected = model(x)
    assert fold_(model) == []
    assert model.conv.bias is None
    assert distance(model(x), expected) < 1e-10


CUT_ONLY = PCNConfig(layers={"0": LayerRule(keep_outputs=8), "2": LayerRule(rank=8)})


@pytest.mark.parametrize(
    "config",
    [PCNConfig(rank=0.5), PCNConfig(rank=0.5, kernel_rank=2), CUT_ONLY],
    ids=["taps", "patterns", "cut"],
)
def test_channels_that_were_last_in_memory_are_last_again(config: PCNConfig) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)).to(memory_format=torch.channels_last)
    compress_(model, [torch.randn(32, 3, 8, 8)], config)
    plain = to_plain(model)
    fold_(model)
    for parameter in (*model.parameters(), *plain.parameters()):
        assert parameter.dim() < 4 or parameter.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize(
    "change",
    [
        lambda layer: prune.l1_unstructured(layer, "weight", 0.3),
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        nn.utils.parametrizations.weight_norm,
        lambda layer: layer.register_buffer("seen", torch.zeros(())),
    ],
    ids=["pruned", "weight norm", "spectral norm", "parametrised", "a buffer"],
)
def test_layers_that_hold_more_than_they_were_made_with_are_refused(
    change: Callable[[nn.Module], object], tmp_path: Path
) -> None:
    model, x = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64)), torch.randn(256, 16)
    compress_(model, [x], PCNConfig(rank=0.25))
    change(model[2])
    expected = model.eval()(x)
    refused: list[Callable[[], object]] = [lambda: fold_(model), lambda: pcn.save(model, tmp_path / "model")]
    if parametrize.is_parametrized(model[2]):
        assert distance(to_plain(model)(x), expected) < 1e-5
    else:
        refused.append(lambda: to_plain(model))
    for each in refused:
        with pytest.raises(PlanError, match=r"'2' was given '\w+' after it was transformed: make pruning"):
            each()
    assert torch.equal(model(x), expected)
    assert not (tmp_path / "model").exists()
