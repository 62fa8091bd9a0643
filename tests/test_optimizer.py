"""The optimizer follows the parameters: same object, same groups, history in the new coordinates."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import pcn
from pcn.nn import PCModule

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


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> float:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss.item()


def switch(
    model: nn.Module, optimizer: torch.optim.Optimizer, config: pcn.PCNConfig, batches: list[Tensor]
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


@pytest.mark.parametrize("rank", [3, 7])
@pytest.mark.parametrize("foreach", [False, True])
def test_momentum_is_what_it_would_be_had_it_been_gathered_in_the_new_coordinates(rank: int, foreach: bool) -> None:
    model = dense_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8, foreach=foreach)
    stats = pcn.analyze(model, [vectors(7)[0]])
    basis, mean = stats.basis("2", rank), stats.mean("2")
    gathered = torch.zeros(6, rank, dtype=torch.double)
    for seed in range(4):
        step(model, optimizer, vectors(seed))
        weight, bias = model[2].weight.grad, model[2].bias.grad
        gathered = 0.8 * gathered + (weight - torch.outer(bias, mean)) @ basis
    bias_buffer = optimizer.state[model[2].bias]["momentum_buffer"].clone()
    config = pcn.PCNConfig(rank=None, layers={"2": pcn.LayerRule(rank=rank)}, skip_larger=False)
    pcn.make_plan(model, stats, config).apply_(model, stats, optimizer=optimizer)
    torch.testing.assert_close(optimizer.state[model[2].weight]["momentum_buffer"], gathered, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(optimizer.state[model[2].bias]["momentum_buffer"], bias_buffer)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"foreach": True}, {"fused": True}, {"foreach": False}])
def test_adam_keeps_its_step_count_and_first_moments(kind: type[torch.optim.Adam], options: dict[str, bool]) -> None:
    model = dense_net()
    optimizer = kind(model.parameters(), lr=0.01, **options)
    stats = pcn.analyze(model, [vectors(7)[0]])
    for seed in range(3):
        step(model, optimizer, vectors(seed))
    before = copy.deepcopy(optimizer.state[model[2].weight])
    bias_before = optimizer.state[model[2].bias]["exp_avg"].clone()
    config = pcn.PCNConfig(rank=None, layers={"2": pcn.LayerRule(rank=4)}, skip_larger=False)
    pcn.make_plan(model, stats, config).apply_(model, stats, optimizer=optimizer)
    after = optimizer.state[model[2].weight]
    expected = (before["exp_avg"] - torch.outer(bias_before, stats.mean("2"))) @ stats.basis("2", 4)
    torch.testing.assert_close(after["exp_avg"], expected, rtol=1e-12, atol=1e-14)
    assert torch.equal(torch.as_tensor(after["step"]), torch.as_tensor(before["step"]))
    assert (after["exp_avg_sq"] >= 0).all()
    assert after.keys() == before.keys()
    for seed in range(3, 6):
        assert step(model, optimizer, vectors(seed)) > 0


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
    assert model[3].bias not in optimizer.state
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


def test_another_optimizer_starts_afresh_with_a_warning_or_is_refused() -> None:
    model = dense_net()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    step(model, optimizer, vectors(0))
    stats = pcn.analyze(model, [vectors(1)[0]])
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=3, skip_larger=False))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(pcn.PlanError, match="RMSprop"):
        plan.apply_(model, stats, optimizer=optimizer, strict=True)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.warns(UserWarning, match="RMSprop.*starts afresh"):
        plan.apply_(model, stats, optimizer=optimizer)
    assert model[2].weight not in optimizer.state
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


def test_state_of_an_unknown_kind_starts_afresh() -> None:
    class Remembering(torch.optim.Adam):
        pass

    model = dense_net()
    optimizer = Remembering(model.parameters(), lr=0.01)
    step(model, optimizer, vectors(0))
    for state in optimizer.state.values():
        state["previous"] = state["exp_avg"].clone()
    with pytest.warns(UserWarning, match="'previous' is unknown"):
        switch(model, optimizer, pcn.PCNConfig(rank=3, skip_larger=False), [vectors(1)[0]])
    assert model[2].weight not in optimizer.state or not optimizer.state[model[2].weight]
