"""The optimizer follows the parameters: same object, same groups, history in the new coordinates."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pcn
from new_coordinates import MODELS, NewCoordinates, batch, planned
from pcn.config import ORDERS
from pcn.nn import PCModule
from pcn.rewriting.replaced import SECOND_MOMENTS
from small import record, step

GAINED = {"normalised": ("0.bias", "3.bias")}  # biases of layers that had none
FULL = pcn.PCNConfig(rank=1.0, skip_larger=False)


def normalised_net() -> nn.Sequential:
    """Train-mode batch norm follows every layer that is transformed."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).double()


def dense_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def images(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 3, 6, 6, generator=generator, dtype=torch.double), torch.randint(4, (8,), generator=generator)


def vectors(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, 5, generator=generator, dtype=torch.double), torch.randint(3, (16,), generator=generator)


def switch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    config: pcn.PCNConfig,
    batches: list[Tensor],
) -> pcn.Plan:
    stats = pcn.analyze(model, batches)
    return pcn.make_plan(model, stats, config).apply_(model, stats, optimizer=optimizer)


def test_where_batch_norm_follows_sgd_goes_on_along_the_parents_own_path() -> None:
    model = normalised_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    for seed in range(5):
        step(model, optimizer, images(seed))
        schedule.step()
    parent = copy.deepcopy(model)
    parents = torch.optim.SGD(parent.parameters(), lr=0.1, momentum=0.9)
    parents.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    parent_schedule = torch.optim.lr_scheduler.StepLR(parents, 4, 0.5)
    parent_schedule.load_state_dict(schedule.state_dict())
    config = pcn.PCNConfig(rank=None, layers={"3": pcn.LayerRule(rank=6)}, skip_larger=False)
    switch(model, optimizer, config, [images(99)[0]])
    assert isinstance(model[3], PCModule)
    for seed in range(5, 17):
        expected, found = step(parent, parents, images(seed)), step(model, optimizer, images(seed))
        schedule.step()
        parent_schedule.step()
        assert found == pytest.approx(expected, rel=1e-11)


OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "plain": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.8}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.8, "nesterov": True}),
    "dampening": (torch.optim.SGD, {"momentum": 0.8, "dampening": 0.3}),
    "decay": (torch.optim.SGD, {"momentum": 0.8, "weight_decay": 0.1}),
    "maximize": (torch.optim.SGD, {"momentum": 0.8, "weight_decay": 0.1, "maximize": True}),
    "foreach": (torch.optim.SGD, {"momentum": 0.8, "foreach": True}),
    "fused": (torch.optim.SGD, {"momentum": 0.8, "fused": True}),
    "tensor rate": (torch.optim.SGD, {"momentum": 0.8, "lr": torch.tensor(0.05)}),
    "Adam": (torch.optim.Adam, {}),
    "Adam decay": (torch.optim.Adam, {"weight_decay": 0.1, "betas": (0.7, 0.9)}),
    "Adam amsgrad": (torch.optim.Adam, {"amsgrad": True, "foreach": False}),
    "Adam maximize": (torch.optim.Adam, {"maximize": True}),
    "AdamW": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "AdamW foreach": (torch.optim.AdamW, {"weight_decay": 0.1, "foreach": True}),
    "AdamW fused": (torch.optim.AdamW, {"weight_decay": 0.1, "fused": True, "amsgrad": True}),
}
EVERYWHERE = ("decay", "Adam decay")  # the others need not meet every kind of layer in every order
SOMEWHERE = [("dense", None), ("grouped", "kept_block"), ("normalised", "truncate_first")]
CASES = [(kind, order, name) for kind in MODELS for order in (None, *ORDERS) for name in EVERYWHERE]
CASES += [(*case, name) for case in SOMEWHERE for name in OPTIMIZERS if name not in EVERYWHERE]


@pytest.mark.parametrize(("kind", "order", "optimizer_kind"), CASES)
def test_history_is_what_it_would_be_had_it_been_gathered_in_the_new_coordinates(
    kind: str, order: str | None, optimizer_kind: str
) -> None:
    make, options = OPTIMIZERS[optimizer_kind]
    model, stats, plan = planned(kind, order)
    model, new = copy.deepcopy(model), NewCoordinates.of(kind, order)
    optimizer = make(model.parameters(), **{"lr": 0.05} | options)
    gathering = make(new.small.parameters(), **options | {"lr": 0.0, "weight_decay": 0.0})
    decay = 0.0 if make is torch.optim.AdamW else options.get("weight_decay", 0.0)  # AdamW's is no gradient
    for seed in range(3):
        gradients = new.gradients(model, batch(kind, seed), -decay if options.get("maximize") else decay)
        for name, parameter in new.small.named_parameters():
            parameter.grad = gradients[name]
        gathering.step()
        step(model, optimizer, batch(kind, seed))
    plan.apply_(model, stats, optimizer=optimizer, check=False)
    for name, parameter in model.named_parameters():
        found, expected = optimizer.state[parameter], gathering.state[new.small.get_parameter(name)]
        if make is not torch.optim.SGD and name in GAINED.get(kind, ()):
            assert not found  # as if it had never had a gradient, which batch norm sees to
            assert expected["exp_avg"].abs().max() < 1e-12
            continue
        assert found.keys() == expected.keys()
        for entry in found:
            if entry not in SECOND_MOMENTS:
                assert_close(found[entry], expected[entry])
            else:
                assert found[entry].shape == parameter.shape
                assert (found[entry] >= 0).all()
        if "max_exp_avg_sq" in found:
            assert (found["max_exp_avg_sq"] >= found["exp_avg_sq"]).all()

    if make is torch.optim.SGD:  # all of its history is exact, so that the reference's path is the model's own
        new.small.load_state_dict(model.state_dict())
        gathering.param_groups[0].update({key: optimizer.param_groups[0][key] for key in ("lr", "weight_decay")})
    for seed in range(3, 6):
        losses = [step(*run, batch(kind, seed)) for run in ((model, optimizer), (new.small, gathering))]
        assert losses[0] == pytest.approx(losses[1], rel=1e-10) or make is not torch.optim.SGD


SPLITS: dict[str, Callable[[str, nn.Parameter], bool]] = {
    "body and head": lambda name, p: name.startswith("0"),
    "weights and biases": lambda name, p: p.ndim > 1,
    "biases and weights": lambda name, p: p.ndim <= 1,
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("optimizer_kind", ["nesterov", "fused", "Adam decay", "AdamW fused"])
@pytest.mark.parametrize(("kind", "order"), SOMEWHERE)
def test_several_optimizers_do_together_what_one_does(
    kind: str, order: str | None, optimizer_kind: str, split: str
) -> None:
    make, options = OPTIMIZERS[optimizer_kind]
    runs = []
    for together in (True, False):
        model, stats, plan = planned(kind, order)
        model = copy.deepcopy(model)
        sides = [[p for n, p in model.named_parameters() if SPLITS[split](n, p) == side] for side in (True, False)]
        optimizers = [
            make(side, **{"lr": 0.05} | options) for side in ([[*sides[0], *sides[1]]] if together else sides)
        ]
        losses = [step_all(model, optimizers, batch(kind, seed)) for seed in range(3)]
        plan.apply_(model, stats, optimizer=optimizers, strict=True, check=False)
        losses += [step_all(model, optimizers, batch(kind, seed)) for seed in range(3, 6)]
        held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        assert sorted(map(id, held)) == sorted(map(id, model.parameters()))
        runs.append((losses, [p.tolist() for p in model.parameters()]))
    assert runs[0] == runs[1]


def step_all(model: nn.Module, optimizers: list[torch.optim.Optimizer], batch: tuple[Tensor, Tensor]) -> float:
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return loss.item()


def test_where_batch_norm_follows_a_switch_to_full_rank_changes_nothing_for_two_optimizers() -> None:
    losses = []
    for switched in (True, False):
        torch.manual_seed(0)
        model = normalised_net()
        body = torch.optim.SGD(model[:3].parameters(), lr=0.1, momentum=0.9)
        head = torch.optim.SGD(model[3:].parameters(), lr=0.03, momentum=0.5, nesterov=True)
        found = [step_all(model, [body, head], images(seed)) for seed in range(4)]
        if switched:
            full = pcn.PCNConfig(rank=1.0, exclude=("8",), skip_larger=False)
            switch(model, [body, head], full, [images(99)[0]])
            assert isinstance(model[0], PCModule)
            assert isinstance(model[3], PCModule)
        losses.append(found + [step_all(model, [body, head], images(seed)) for seed in range(4, 12)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
    assert len(set(losses[1])) == 12


def test_a_bias_that_another_kind_of_optimizer_trains_counts_as_if_it_had_no_history() -> None:
    model = dense_net()
    weights = torch.optim.Adam([p for p in model.parameters() if p.ndim > 1], lr=0.01)
    biases = torch.optim.SGD([p for p in model.parameters() if p.ndim == 1], lr=0.01, momentum=0.9)
    step_all(model, [weights, biases], vectors(0))
    before = weights.state[model[2].weight]["exp_avg"].clone()
    kept = biases.state[model[2].bias]["momentum_buffer"].clone()
    stats = pcn.analyze(model, [vectors(1)[0]])
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=3, skip_larger=False))
    plan.apply_(model, stats, optimizer=(weights, biases))
    assert_close(weights.state[model[2].weight]["exp_avg"], before @ stats.basis("2", 3))
    assert_close(biases.state[model[2].bias]["momentum_buffer"], kept)


def assert_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected), rtol=1e-10, atol=1e-13)


def test_parameters_stay_in_their_groups_and_a_gained_bias_joins_its_weight() -> None:
    model = normalised_net()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.SGD(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=0.1, momentum=0.9
    )
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda n: n / 10, lambda n: n / 10])
    groups = [id(group) for group in optimizer.param_groups]
    step(model, optimizer, images(0))
    config = pcn.PCNConfig(rank=0.5, layers={"0": pcn.LayerRule(keep_outputs=4)}, skip_larger=False)
    switch(model, optimizer, config, [images(1)[0]])
    assert [id(group) for group in optimizer.param_groups] == groups
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}
    first, second = (group["params"] for group in optimizer.param_groups)
    assert any(p is model[3].bias for p in first)
    assert any(p is model[1].weight for p in second)
    assert model[1].weight.shape == (4,)
    assert optimizer.state[model[1].weight]["momentum_buffer"].shape == (4,)
    assert not optimizer.state[model[3].bias]["momentum_buffer"].any()
    step(model, optimizer, images(2))
    warm_up.step()


def test_a_group_that_knows_names_learns_the_new_ones() -> None:
    model = normalised_net()
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.01)
    step(model, optimizer, images(0))
    switch(model, optimizer, FULL, [images(1)[0]])
    names = dict(zip(optimizer.param_groups[0]["param_names"], optimizer.param_groups[0]["params"], strict=True))
    own = dict(model.named_parameters())
    assert names.keys() == own.keys()
    assert all(names[name] is own[name] for name in own)


OTHERS = ["ASGD", "Adadelta", "Adafactor", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"]


@pytest.mark.parametrize("kind", OTHERS)
def test_another_optimizer_starts_afresh_with_a_warning_or_is_refused(kind: str) -> None:
    model = dense_net()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
    step(model, optimizer, vectors(0))
    kept = optimizer.state[model[0].weight]
    stats = pcn.analyze(model, [vectors(1)[0]])
    config = pcn.PCNConfig(rank=3, exclude=("0",), skip_larger=False)
    plan = pcn.make_plan(model, stats, config)
    before, parameters = record(model), list(optimizer.param_groups[0]["params"])
    with pytest.raises(pcn.PlanError, match=f"{kind} is not SGD, Adam, AdamW or Muon.*strict=False"):
        plan.apply_(model, stats, optimizer=optimizer, strict=True)
    assert record(model) == before
    assert all(p is q for p, q in zip(optimizer.param_groups[0]["params"], parameters, strict=True))
    with pytest.warns(UserWarning, match=f"{kind} is not .*starts afresh"):
        plan.apply_(model, stats, optimizer=optimizer)
    fresh = getattr(torch.optim, kind)([model[2].weight], lr=0.01).state[model[2].weight]
    assert optimizer.state[model[2].weight].keys() == fresh.keys()
    assert optimizer.state[model[0].weight] is kept
    weight = model[2].weight.detach().clone()
    for seed in (2, 3):
        step(model, optimizer, vectors(seed))
    assert not torch.equal(model[2].weight, weight)


def test_a_gained_bias_that_an_optimizer_does_not_take_is_refused_beforehand() -> None:
    model = nn.Sequential(nn.Linear(5, 8, bias=False), nn.Tanh(), nn.Linear(8, 8, bias=False), nn.Tanh()).double()
    optimizer = torch.optim.Muon(model.parameters(), lr=0.01)
    before = record(model)
    with pytest.raises(pcn.PlanError, match=r"Muon does not take .*2D.*gains one.*optimizer=\[muon, adamw\]"):
        switch(model, optimizer, pcn.PCNConfig(rank=3, skip_larger=False), [vectors(1)[0]])
    assert record(model) == before


def test_a_history_of_all_parameters_together_is_refused() -> None:
    model = dense_net()
    optimizer = torch.optim.LBFGS(model.parameters())
    before = record(model)
    with pytest.raises(pcn.PlanError, match="LBFGS keeps one history"):
        switch(model, optimizer, FULL, [vectors(1)[0]])
    assert record(model) == before


def test_an_optimizer_with_a_constructor_of_its_own_gets_the_new_parameters() -> None:
    class OfModel(torch.optim.RMSprop):
        def __init__(self, model: nn.Module, **options: Any) -> None:
            super().__init__(model.parameters(), lr=0.01)

    model = dense_net()
    optimizer = OfModel(model)
    with pytest.warns(UserWarning, match="OfModel is not"):
        switch(model, optimizer, FULL, [vectors(1)[0]])
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]
    step(model, optimizer, vectors(2))


def test_an_averaged_model_follows_by_the_same_plan() -> None:
    model = normalised_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for seed in range(3):
        step(model, optimizer, images(seed))
        ema.update_parameters(model)
    model.eval()
    ema.eval()
    expected = ema(images(5)[0])
    stats = pcn.analyze(model, [images(9)[0]])
    pcn.make_plan(model, stats, FULL).apply_(model, stats, optimizer=optimizer, ema=ema)
    torch.testing.assert_close(ema(images(5)[0]), expected, rtol=1e-10, atol=1e-12)
    model.train()
    step(model, optimizer, images(3))
    ema.update_parameters(model)
    assert isinstance(ema.module[3], PCModule)


def test_a_checkpoint_of_the_optimizer_reloads_after_the_switch() -> None:
    model = normalised_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step(model, optimizer, images(0))
    plan = switch(model, optimizer, pcn.PCNConfig(rank=0.5, skip_larger=False), [images(1)[0]])
    step(model, optimizer, images(2))
    again = normalised_net()
    plan.reshape_(again)
    again.load_state_dict(model.state_dict())
    resumed = torch.optim.AdamW(again.parameters(), lr=0.01)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert step(again, resumed, images(3)) == step(model, optimizer, images(3))
    assert step(again, resumed, images(4)) == step(model, optimizer, images(4))


def test_a_trained_basis_keeps_the_order_of_a_model_built_anew() -> None:
    model = dense_net()
    optimizer = torch.optim.Adam(model.named_parameters(), lr=0.01)
    step(model, optimizer, vectors(0))
    switch(model, optimizer, pcn.PCNConfig(rank=3, train_basis=True, skip_larger=False), [vectors(1)[0]])
    assert optimizer.param_groups[0]["param_names"] == [name for name, _ in model.named_parameters()]
    step(model, optimizer, vectors(2))


def test_the_optimizer_of_another_model_is_refused() -> None:
    model = dense_net()
    stats = pcn.analyze(model, [vectors(1)[0]])
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=3, skip_larger=False))
    with pytest.raises(pcn.PlanError, match="none of the parameters"):
        plan.apply_(model, stats, optimizer=torch.optim.Adam(dense_net().parameters()))
    assert pcn.get_plan(model) is None


def test_state_of_an_unknown_kind_starts_afresh_or_is_refused() -> None:
    class Remembering(torch.optim.Adam):
        pass

    model = dense_net()
    optimizer = Remembering(model.parameters(), lr=0.01)
    step(model, optimizer, vectors(0))
    for state in optimizer.state.values():
        state["previous"] = state["exp_avg"].clone()
    stats = pcn.analyze(model, [vectors(1)[0]])
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=3, skip_larger=False))
    before = record(model)
    with pytest.raises(pcn.PlanError, match="'previous', which is unknown"):
        plan.apply_(model, stats, optimizer=optimizer, strict=True)
    assert record(model) == before
    with pytest.warns(UserWarning, match="'previous', which is unknown"):
        plan.apply_(model, stats, optimizer=optimizer)
    assert model[2].weight not in optimizer.state
    step(model, optimizer, vectors(2))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_history_that_was_carried_in_inference_mode_can_be_added_to(kind: type[torch.optim.Optimizer]) -> None:
    model = dense_net()
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(model.parameters(), lr=0.01, **options)
    step(model, optimizer, vectors(0))
    nn.functional.cross_entropy(model(vectors(1)[0]), vectors(1)[1]).backward()
    with torch.inference_mode():
        switch(model, optimizer, FULL, [vectors(1)[0]])
    nn.functional.cross_entropy(model(vectors(2)[0]), vectors(2)[1]).backward()
    optimizer.step()
    step(model, optimizer, vectors(3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("options", [{"capturable": True}, {"fused": True}, {"foreach": True, "capturable": True}])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_history_on_a_gpu_stays_there(kind: type[torch.optim.Optimizer], options: dict[str, bool]) -> None:
    model = dense_net().cuda()
    optimizer = kind(model.parameters(), lr=0.01, **options)
    step(model, optimizer, tuple(t.cuda() for t in vectors(0)))
    stats = pcn.analyze(model, [vectors(1)[0]])
    before = copy.deepcopy(optimizer.state[model[2].weight])
    bias = optimizer.state[model[2].bias]["exp_avg"].clone()
    pcn.make_plan(model, stats, pcn.PCNConfig(rank=4, skip_larger=False)).apply_(model, stats, optimizer=optimizer)
    after = optimizer.state[model[2].weight]
    expected = (before["exp_avg"] - torch.outer(bias, stats.mean("2").cuda())) @ stats.basis("2", 4).cuda()
    torch.testing.assert_close(after["exp_avg"], expected, rtol=1e-10, atol=1e-13)
    assert {key: value.device for key, value in after.items()} == {key: value.device for key, value in before.items()}
    for seed in (2, 3):
        step(model, optimizer, tuple(t.cuda() for t in vectors(seed)))


@pytest.mark.parametrize(("kernel", "padding"), [((3, 9), (1, 0)), ((3, 15), (1, 0)), ((1, 17), (0, 1))])
def test_moments_of_convolutions_along_flat_images_stay_numbers(
    kernel: tuple[int, int], padding: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, kernel, padding=padding)
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    optimizer, images = torch.optim.AdamW(model.parameters()), torch.randn(16, 3, 2, 32)
    step(model, optimizer, (images, torch.zeros(16, dtype=torch.long)))
    config = pcn.PCNConfig(layers={"2": pcn.LayerRule(rank=4)}, exclude=["0", "5"])
    pcn.compress_(model, [images], config, optimizer=optimizer)
    step(model, optimizer, (images, torch.zeros(16, dtype=torch.long)))
    assert all(parameter.isfinite().all() for parameter in model.parameters())
