"""Applying a plan: everything that should follow does, and a change that fails leaves no trace."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pcn import LayerRule, PCNConfig, Plan, PlanError, Statistics, analyze, get_plan, make_plan
from pcn.config import ORDERS
from pcn.fusion import fuse_
from pcn.fusion.norms import FusedNorm
from pcn.nn import PCConv2d, PCLinear, PCModule
from pcn.rewriting.bases import find_bases
from pcn.rewriting.edit import Edit
from pcn.rewriting.fold import fold_
from pcn.rewriting.surgery import commit_, try_plan
from small import ConvNet, Mlp, Residual, all_tensors, conv_net, distance, images, record, vectors

SMALL = PCNConfig(rank=0.25, exclude=["fc1"])
DROPPING = PCNConfig(
    rank=0.5,
    layers={"conv1": LayerRule(rank=None, keep_outputs=5), "conv2": LayerRule(rank=0.5, keep_outputs=8)},
    skip_larger=False,
)


def prepared(model: nn.Module, x: Tensor, config: PCNConfig) -> tuple[Plan, Statistics]:
    stats = analyze(model, [x])
    return make_plan(model, stats, config), stats


def transform_(model: nn.Module, x: Tensor, config: PCNConfig) -> Plan:
    plan, stats = prepared(model, x, config)
    return plan.apply_(model, stats)


@pytest.mark.parametrize(("make", "inputs"), [(Mlp, vectors), (Residual, vectors), (conv_net, images)])
def test_full_rank_leaves_the_function_unchanged(make: Callable[[], nn.Module], inputs: Callable[[], Tensor]) -> None:
    model, x = make().double(), inputs().double()
    expected = model(x)
    plan = transform_(model, x, PCNConfig(rank=1.0, skip_larger=False))
    assert all(layer.rank is not None for layer in plan.layers.values())
    assert distance(model(x), expected) < 1e-12


@settings(max_examples=10)
@given(st.floats(0.05, 1), st.booleans(), st.sampled_from(ORDERS))
def test_a_kept_offset_leaves_the_function_unchanged_at_any_rank(rank: float, train_basis: bool, order: str) -> None:
    model, x = conv_net().double(), images().double()
    expected = model(x)
    config = PCNConfig(rank=rank, keep_dropped=True, train_basis=train_basis, order=order, skip_larger=False)
    transform_(model, x, config)
    assert all(module.offset_weight is not None for module in model.modules() if isinstance(module, PCModule))
    assert distance(model(x), expected) < 1e-12


@pytest.mark.parametrize("order", ORDERS)
def test_dropped_channels_count_as_what_the_order_says(order: str) -> None:
    """With a full basis: dropped channels are zero, or at their mean."""
    model, x = Mlp().double(), vectors().double()
    rules = {"fc1": LayerRule(keep_outputs=9), "fc2": LayerRule(rank=1.0, order=order)}
    plan, stats = prepared(model, x, PCNConfig(rank=None, layers=rules, skip_larger=False))
    hidden = torch.tanh(model.fc1(x))
    dropped = torch.ones(24, dtype=torch.bool)
    dropped[list(plan.kept("fc1.weight", 0))] = False
    hidden[:, dropped] = 0.0 if order == "truncate_first" else stats.mean("fc2")[dropped]
    expected = model.fc3(torch.tanh(model.fc2(hidden)))
    plan.apply_(model, stats)
    assert model.fc2.in_features == 9
    assert distance(model(x), expected) < 1e-12


def test_what_lies_between_is_cut_and_says_its_new_size() -> None:
    model, x = conv_net(), images()
    transform_(model, x, DROPPING)
    assert (model.conv1.out_channels, model.bn1.num_features, model.conv2.in_channels) == (5, 5, 5)
    assert (model.conv2.out_channels, model.bn2.num_features, model.conv3.in_channels) == (8, 8, 8)
    assert type(model.conv1) is nn.Conv2d
    assert type(model.conv2) is PCConv2d
    assert all(t.shape == (5,) for name, t in all_tensors(model).items() if name.startswith("bn1") and t.ndim)
    assert model(x).shape == (24, 5)


class BoomError(RuntimeError):
    """Raised by the tests' own hooks."""


def explode(*_: Any) -> None:
    raise BoomError("not today")


@pytest.mark.parametrize("config", [SMALL, DROPPING], ids=["input", "output"])
def test_a_model_that_no_longer_runs_is_put_back_as_it_was(config: PCNConfig) -> None:
    model, x = conv_net(), images()
    model.bn2.train()
    plan, stats = prepared(model, x, config)
    model.fc2.register_forward_pre_hook(explode)
    before = record(model)
    with pytest.raises(PlanError, match="does not run, so the model was put back as it was: not today"):
        plan.apply_(model, stats)
    assert record(model) == before
    assert get_plan(model) is None


def test_a_forward_that_reads_a_weight_in_a_new_shape_is_put_back() -> None:
    class Tied(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.fc3(self.fc2.weight.mean(0))

    model, x = Tied(), vectors()
    stats = analyze(model, [x])
    plan = make_plan(model, None, PCNConfig(rank=2))
    before = record(model)
    with pytest.raises(PlanError, match="put back as it was"):
        plan.apply_(model, stats)
    assert record(model) == before


def test_a_model_with_a_part_that_was_transformed_by_itself_is_refused() -> None:
    model, x = nn.Sequential(Mlp(), nn.Linear(5, 5)), vectors()
    plan = make_plan(model, None, PCNConfig(rank=2, skip_larger=False))
    transform_(model[0], x, SMALL)
    before = record(model)
    rest, stats = prepared(model, x, PCNConfig(rank=2, skip_larger=False))
    with pytest.raises(PlanError, match=r"the part '0' of this model has been transformed by itself.*pcn.fold_"):
        rest.apply_(model, stats)
    assert record(model) == before
    fold_(model[0])
    plan.apply_(model, analyze(model, [x]))
    assert get_plan(model) is plan


def test_a_change_that_fails_or_is_only_tried_leaves_the_model_fused() -> None:
    model, x = conv_net().train(), images()
    fuse_(model, x)
    plan, stats = prepared(model, x, SMALL)
    classes = [type(module) for module in model.modules()]
    held = [dict(vars(module)) for module in model.modules()]
    assert FusedNorm in classes[2].__mro__
    try_plan(plan, model, find_bases(plan, stats, model), example=stats.example, optimizer=None, strict=False)
    assert [type(module) for module in model.modules()] == classes
    handle = model.fc2.register_forward_pre_hook(explode)
    with pytest.raises(PlanError, match="not today"):
        plan.apply_(model, stats)
    handle.remove()
    assert [type(module) for module in model.modules()] == classes
    for module, before in zip(model.modules(), held, strict=True):
        assert all(vars(module)[name] is before[name] for name in ("chain", "use") if name in before)
    plan.apply_(model, stats)
    assert not any(isinstance(module, FusedNorm) for module in model.modules())


def test_an_interrupted_change_is_put_back() -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    model, x = conv_net(), images()
    plan, stats = prepared(model, x, DROPPING)
    model.fc2.register_forward_pre_hook(interrupt)
    before = record(model)
    with pytest.raises(KeyboardInterrupt):
        plan.apply_(model, stats)
    assert record(model) == before


def test_a_change_that_fails_halfway_is_put_back() -> None:
    class Stubborn(nn.BatchNorm2d):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "num_features" and "num_features" in self.__dict__:
                explode()
            super().__setattr__(name, value)

    model, x = conv_net(), images()
    plan, stats = prepared(model, x, DROPPING)
    model.bn2 = Stubborn(12).eval()
    before = record(model)
    with pytest.raises(BoomError):
        plan.apply_(model, stats)
    assert record(model) == before


def test_an_averaged_copy_that_does_not_fit_leaves_both_alone() -> None:
    model, x = conv_net(), images()
    other = Mlp()
    plan, stats = prepared(model, x, DROPPING)
    before = record(model), record(other)
    with pytest.raises(PlanError, match="'conv1'"):
        plan.apply_(model, stats, ema=other)
    assert (record(model), record(other)) == before


def test_the_check_leaves_no_trace() -> None:
    model, x = conv_net(), images()
    model.train()
    plan, stats = prepared(model, x, DROPPING)
    random, copied = torch.get_rng_state(), copy.deepcopy(model)
    plan.apply_(model, stats)
    plan.apply_(copied, stats, check=False)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(module.training for module in model.modules())
    assert model.state_dict().keys() == copied.state_dict().keys()
    assert all(torch.equal(tensor, copied.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_undoing_puts_everything_back() -> None:
    model, x = conv_net(), images()
    plan, _ = prepared(model, x, DROPPING)
    before = record(model)
    new = nn.Parameter(torch.ones(3))
    undo = commit_(model, Edit([(model.fc1, nn.Linear(32, 16))], {id(model.bn1.bias): (model.bn1.bias, new)}), plan)
    assert model.bn1.bias is new
    assert get_plan(model) is plan
    undo()
    assert record(model) == before


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            Mlp(30),
            r"'fc1' has \(inputs, outputs, groups, kernel, bias\) \(12, 30, 1, \(\), True\), the plan was made for",
        ),
        (Residual(), "the plan has a layer 'fc1', the model none"),
        (nn.Sequential(), "the plan has a layer 'fc1', the model none"),
    ],
)
def test_a_plan_of_another_model_is_refused(other: nn.Module, message: str) -> None:
    model, x = Mlp(), vectors()
    plan, stats = prepared(model, x, SMALL)
    before = record(other)
    for change in (lambda: plan.apply_(other, stats), lambda: plan.reshape_(other)):
        with pytest.raises(PlanError, match=message):
            change()
    assert record(other) == before


def test_a_plan_of_a_model_with_other_kinds_of_layers_is_refused() -> None:
    plan = make_plan(conv_net(), None, SMALL)
    other = conv_net()
    other.conv1 = nn.Linear(3, 8)
    with pytest.raises(PlanError, match="'conv1' is a conv2d layer in the plan, but Linear in the model"):
        plan.reshape_(other)


def test_a_cut_that_does_not_fit_is_refused() -> None:
    plan = make_plan(conv_net(), None, DROPPING, example=images(2))
    for change, message in [
        (lambda m: setattr(m, "bn1", nn.BatchNorm2d(8, affine=False)), "cuts 'bn1.weight', which the model does not"),
        (lambda m: setattr(m, "bn1", nn.BatchNorm2d(9)), r"cut of 'bn1.\w+' does not fit its shape \(9,\)"),
    ]:
        other = conv_net()
        change(other)
        with pytest.raises(PlanError, match=message):
            plan.reshape_(other)


def test_statistics_of_another_model_are_refused() -> None:
    model = Mlp()
    plan = make_plan(model, None, SMALL)
    before = record(model)
    with pytest.raises(PlanError, match=r"'fc2' are of 30 inputs .* the layer has 24 .* analyze this model itself"):
        plan.apply_(model, analyze(Mlp(30), [vectors()]))
    assert record(model) == before


def test_hooks_move_along_and_their_handles_still_remove_them() -> None:
    model, x = Mlp(), vectors()
    calls: list[str] = []
    handles = [
        model.fc2.register_forward_hook(lambda *_: calls.append("forward")),
        model.fc2.register_forward_pre_hook(lambda *_: calls.append("pre")),
        model.fc2.register_full_backward_hook(lambda *_: calls.append("backward")),
    ]
    plan, stats = prepared(model, x, SMALL)
    plan.apply_(model, stats, check=False)
    calls.clear()
    model(x).sum().backward()
    assert calls == ["pre", "forward", "backward"]
    for handle in handles:
        handle.remove()
    model(x).sum().backward()
    assert len(calls) == 3


def test_modes_and_frozen_parameters_stay_as_they_are() -> None:
    model, x = conv_net(), images()
    model.conv2.train()
    model.conv3.weight.requires_grad_(False)
    model.fc1.bias.requires_grad_(False)
    model.bn1.bias.requires_grad_(False)
    transform_(model, x, DROPPING)
    assert [name for name, module in model.named_modules() if module.training] == ["conv2"]
    assert not model.conv3.weight.requires_grad
    assert not model.fc1.bias.requires_grad
    assert model.fc1.weight.requires_grad
    assert not model.bn1.bias.requires_grad
    assert model.bn1.weight.requires_grad


def test_a_module_under_two_names_is_replaced_under_both() -> None:
    class Twice(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.again = self.fc2
            self.nested = nn.ModuleDict({"fc": self.fc2})

        def forward(self, x: Tensor) -> Tensor:
            x = self.nested["fc"](torch.tanh(self.fc1(x)))
            return self.fc3(torch.tanh(self.again(torch.tanh(self.fc2(x)))))

    model, x = Twice().double(), vectors().double()
    expected = model(x)
    transform_(model, x, PCNConfig(rank=1.0, skip_larger=False))
    assert isinstance(model.fc2, PCLinear)
    assert model.fc2 is model.again is model.nested["fc"]
    assert distance(model(x), expected) < 1e-12


def test_tied_tensors_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.hidden = nn.Embedding(30, 12), nn.Linear(12, 12)
            self.output = nn.Linear(12, 30, bias=False)
            self.output.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.output(torch.tanh(self.hidden(self.embedding(tokens))))

    model, x = Tied(), torch.randint(30, (8, 20))
    plan = transform_(model, x, PCNConfig(rank=3))
    assert plan.layers["output"].reason == "its weight is shared by 'embedding' and 'output'"
    assert model.output.weight is model.embedding.weight
    assert model.hidden.rank == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_stay_as_they_are(dtype: torch.dtype) -> None:
    model, x = conv_net().to(dtype), images().to(dtype)
    transform_(model, x, DROPPING)
    assert {t.dtype for t in all_tensors(model).values() if t.is_floating_point()} == {dtype}
    assert model(x).dtype is dtype


def test_the_device_stays_as_it_is() -> None:
    with torch.device("meta"):
        model = ConvNet()
    make_plan(model, None, DROPPING, example=images(2)).reshape_(model)
    assert all(t.is_meta for t in all_tensors(model).values())


def test_a_trained_basis_is_trained() -> None:
    model, x = Mlp(), vectors()
    transform_(model, x, PCNConfig(rank=0.25, exclude=["fc1"], train_basis=True))
    assert {"fc2.basis", "fc2.mean"} <= {name for name, _ in model.named_parameters()}
    before = model.fc2.basis.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().mean().backward()
    optimizer.step()
    assert not torch.equal(model.fc2.basis, before)
    assert get_plan(model).layers["fc2"].trainable_after == sum(p.numel() for p in model.fc2.parameters())


def test_a_frozen_basis_is_not() -> None:
    model, x = Mlp(), vectors()
    transform_(model, x, SMALL)
    assert [name for name, _ in model.fc2.named_parameters()] == ["weight", "bias"]
    assert {name for name, _ in model.fc2.named_buffers()} == {"basis", "mean"}


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("called_before", [True, False])
def test_a_compiled_model_runs_as_the_transformed_one(in_place: bool, called_before: bool) -> None:
    model, x = conv_net(), images()
    eager = copy.deepcopy(model)
    plan, stats = prepared(eager, x, DROPPING)
    plan.apply_(eager, stats)
    if in_place:
        model.compile(backend="eager")
        compiled: Any = model
    else:
        compiled = torch.compile(model, backend="eager")
    if called_before:
        compiled(x)
    plan.apply_(compiled, stats)
    assert get_plan(compiled) is plan
    assert torch.equal(compiled(x), eager(x))
    assert [name for name, _ in model.named_modules()] == [name for name, _ in eager.named_modules()]


def test_a_model_in_a_parallel_wrapper_is_transformed_inside() -> None:
    model, x = Mlp(), vectors()
    transform_(nn.DataParallel(model), x, SMALL)
    assert isinstance(model.fc2, PCLinear)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_and_pickles_keep_the_plan(duplicate: Callable[[nn.Module], nn.Module]) -> None:
    model, x = conv_net(), images()
    plan = transform_(model, x, DROPPING)
    copied = duplicate(model)
    assert get_plan(copied) == plan
    assert torch.equal(copied(x), model(x))


def test_the_new_weights_train() -> None:
    model, x = conv_net().train(), images()
    transform_(model, x, DROPPING)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    targets = torch.randint(5, (len(x),))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("outputs", [None, 6])  # with fewer of them it does not even run
def test_a_layer_that_is_also_held_in_a_list_is_found_out(outputs: int | None) -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.last = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 3)
            self.steps = [self.a, self.b]

        def forward(self, x: Tensor) -> Tensor:
            for step in self.steps:
                x = torch.tanh(step(x))
            return self.last(x)

    model, x = Listed(), torch.randn(40, 12)
    plan, stats = prepared(model, x, PCNConfig(rank=4, keep_outputs=outputs, skip_larger=False))
    before = record(model)
    with pytest.raises(PlanError, match="still calls the old 'a'"):
        plan.apply_(model, stats)
    assert record(model) == before


def test_a_plan_that_changes_nothing_leaves_the_model_free() -> None:
    model, x = Mlp(), vectors()
    plan, stats = prepared(model, x, PCNConfig(rank=None))
    plan.apply_(model, stats)
    assert get_plan(model) == plan
    again = transform_(model, x, SMALL)
    assert again.transformed
    assert get_plan(model) == again


def test_what_is_made_in_inference_mode_can_be_trained() -> None:
    model, x = Mlp(), vectors()
    with torch.inference_mode():
        transform_(model, x, PCNConfig(rank=4, skip_larger=False))
    model(x.clone()).sum().backward()
    assert model.fc2.weight.grad is not None
