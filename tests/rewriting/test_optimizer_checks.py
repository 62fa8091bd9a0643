"""Parameters that no optimizer holds are named before anything changes, and the warning points at the user's line."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Muon, Optimizer

import pcn
from pcn.planner.optimizer_state import kind_of
from pcn.running.optimizers import as_optimizers
from small import Mlp, record, vectors

SMALL = pcn.PCNConfig(rank=4, skip_larger=False)


def switch_(model: nn.Module, optimizer: object, **options: object) -> None:
    pcn.Switch(model, optimizer, SMALL, **options).now([vectors()])


def step(model: nn.Module, x: Tensor, *optimizers: Optimizer) -> None:
    model.zero_grad()
    (model(x) - 1).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()


def moved(model: nn.Module, *optimizers: Optimizer) -> set[str]:
    """The names of all parameters that a few steps change."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for _ in range(3):
        step(model, vectors(), *optimizers)
    return {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}


def test_what_no_optimizer_holds_is_named_in_a_warning_that_points_here() -> None:
    for change in (
        lambda model, optimizer: pcn.compress_(model, [vectors()], SMALL, optimizer=optimizer),
        lambda model, optimizer: switch_(model, optimizer),
        lambda model, optimizer: switch_(model, [optimizer]),
    ):
        model = Mlp()
        with pytest.warns(UserWarning, match=r"holds 'fc1.weight', 'fc1.bias', 'fc2.weight' and 1 more, so") as told:
            change(model, SGD(model.fc3.parameters(), 0.1))
        assert [each.filename for each in told] == [__file__]


@pytest.mark.parametrize("way", ["compress_", "apply_", "Switch"])
def test_an_optimizer_that_was_forgotten_is_told_of(way: str) -> None:
    """It would train nothing but the layers that stay, with a loss that falls all the same."""

    def change(model: nn.Module) -> None:
        if way == "compress_":
            pcn.compress_(model, [vectors()], SMALL)
        elif way == "apply_":
            stats = pcn.analyze(model, [vectors()])
            pcn.make_plan(model, stats, SMALL).apply_(model, stats)
        else:
            switch_(model, None)

    model = Mlp()
    optimizer = SGD(model.parameters(), 0.1)
    step(model, vectors(), optimizer)
    with pytest.warns(UserWarning, match=r"given, and the SGD that holds 'fc1.weight'.* and 3 more goes on") as told:
        change(model)
    assert [each.filename for each in told] == [__file__]


def test_an_optimizer_that_is_gone_or_of_another_model_was_not_forgotten() -> None:
    model, other = Mlp(), Mlp()
    optimizer = SGD(other.parameters(), 0.1)
    optimizer.itself = optimizer  # as with a scheduler: gone only when somebody clears up
    step(other, vectors(), optimizer)
    step(model, vectors(), SGD(model.parameters(), 0.1))
    pcn.compress_(model, [vectors()], SMALL)
    step(model, vectors())
    pcn.fold_(model)  # to give the model away
    del optimizer
    pcn.compress_(other, [vectors()], SMALL)


def test_a_reset_is_told_at_the_users_line_too() -> None:
    model = Mlp()
    optimizer = torch.optim.RMSprop(model.parameters())
    with pytest.warns(UserWarning, match="RMSprop is not") as told:
        switch_(model, optimizer)
    with pytest.warns(UserWarning, match="RMSprop is not SGD or Muon:") as told_of_folding:
        pcn.fold_(model, optimizer=optimizer)
    assert [each.filename for each in (*told, *told_of_folding)] == [__file__] * 2


def test_strict_refuses_it_and_nothing_is_changed() -> None:
    model = Mlp()
    optimizer = SGD(model.fc3.parameters(), 0.1)
    before = record(model)
    with pytest.raises(pcn.PlanError, match=r"'fc1.weight', .*optimizer=\[one, other\].*strict=False"):
        switch_(model, optimizer, strict=True)
    assert record(model) == before
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.fc3.parameters()]


def test_a_resumed_run_that_forgets_an_optimizer_is_told() -> None:
    model = Mlp()
    switch = pcn.Switch(model, [SGD(model.fc1.parameters(), 0.1), SGD([*model.parameters()][2:], 0.1)], SMALL)
    switch.now([vectors()])
    again = Mlp()
    forgetful = pcn.Switch(again, SGD(again.fc1.parameters(), 0.1), SMALL)
    with pytest.warns(UserWarning, match=r"'fc2.weight', 'fc2.bias', 'fc3.weight' and 1 more"):
        forgetful.load_state_dict(switch.state_dict())


def test_all_of_several_optimizers_go_on_training_all_layers() -> None:
    model = Mlp()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    muon = Muon(matrices, lr=0.05)
    adamw = AdamW([p for p in model.parameters() if p.ndim == 1], lr=0.05)
    step(model, vectors(), muon, adamw)
    switch_(model, [muon, adamw], strict=True)
    assert moved(model, muon, adamw) == {name for name, _ in model.named_parameters()}
    assert moved(model, muon) == {name for name, p in model.named_parameters() if p.ndim == 2}


def test_what_could_follow_no_plan_is_refused_when_the_switch_is_made() -> None:
    model, biasless = Mlp(), nn.Sequential(nn.Linear(8, 8, bias=False), nn.LayerNorm(8), nn.Linear(8, 8, bias=False))
    with pytest.raises(pcn.PlanError, match="LBFGS keeps one history"):
        pcn.Switch(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(pcn.PlanError, match="RMSprop is not"):
        pcn.Switch(model, torch.optim.RMSprop(model.parameters()), strict=True)
    with pytest.raises(pcn.PlanError, match="Muon does not take"):
        pcn.Switch(biasless, Muon([biasless[0].weight, biasless[2].weight]))
    pcn.Switch(model, torch.optim.RMSprop(model.parameters()))
    pcn.Switch(model, [SGD(model.fc1.parameters()), torch.optim.RMSprop(model.fc2.parameters())], strict=True)


@pytest.mark.parametrize("other", [torch.optim.RMSprop, torch.optim.LBFGS])
def test_another_kind_that_holds_nothing_replaced_goes_on_without_a_word(other: type[Optimizer]) -> None:
    model = Mlp()
    body = SGD([*model.fc1.parameters(), *model.fc2.parameters()], 0.05, momentum=0.9)
    head = other(model.fc3.parameters(), lr=0.01)
    config = pcn.PCNConfig(rank=4, skip_larger=False, exclude=["fc3"])
    pcn.Switch(model, [body, head], config, strict=True).now([vectors()])
    assert moved(model, body) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    pcn.fold_(model, optimizer=[body, head])


@pytest.mark.parametrize("held", [True, False])
def test_frozen_layers_are_passed_over_and_can_be_unfrozen_later(held: bool) -> None:
    model = Mlp()
    model.fc2.requires_grad_(False)
    optimizer = SGD([p for p in model.parameters() if held or p.requires_grad], 0.1, momentum=0.9)
    step(model, vectors(), optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        switch_(model, optimizer, strict=True)
    assert moved(model, optimizer) == {"fc1.weight", "fc1.bias", "fc3.weight", "fc3.bias"}
    model.fc2.requires_grad_(True)
    if not held:
        optimizer.add_param_group({"params": list(model.fc2.parameters())})
    assert moved(model, optimizer) == {name for name, _ in model.named_parameters()}


def test_an_optimizer_from_before_folding_is_told_from_a_strangers() -> None:
    model = Mlp()
    optimizer = AdamW(model.parameters())
    pcn.compress_(model, [vectors()], SMALL, optimizer=optimizer)
    pcn.fold_(model)
    with pytest.raises(
        pcn.PlanError, match=r"none of .*6 of those .* are not in this model.*fold_\(model, optimizer=\.\.\.\)"
    ):
        pcn.compress_(model, [vectors()], SMALL, optimizer=optimizer)
    assert pcn.get_plan(model) is None
    with pytest.raises(pcn.PlanError, match="none of the parameters"):
        pcn.compress_(model, [vectors()], SMALL, optimizer=AdamW(Mlp().parameters()))


def test_what_is_no_optimizer_is_refused() -> None:
    model = Mlp()
    given = AdamW(model.parameters())
    assert as_optimizers(None) == ()
    assert as_optimizers(given) == as_optimizers([given]) == as_optimizers((given,)) == (given,)
    for wrong, said in [
        ([], "list of optimizers is empty"),
        ([given, AdamW], "an optimizer in the list is AdamW"),
        ({"all": given}, "the optimizer is of type dict: .*a list"),
        ("adam", "of type str"),
    ]:
        for call in (lambda w=wrong: pcn.Switch(model, w), lambda w=wrong: pcn.compress_(model, [], optimizer=w)):
            with pytest.raises(pcn.ConfigError, match=said):
                call()


def test_a_budget_of_memory_counts_the_one_that_keeps_most() -> None:
    model = Mlp()
    sgd, adamw = SGD(model.fc1.parameters(), momentum=0.9), AdamW(model.fc2.parameters())
    assert kind_of([sgd, adamw]) == kind_of([adamw, sgd]) == "adam"
    assert kind_of([sgd, Muon([model.fc3.weight])]) is None
    with pytest.raises(pcn.ConfigError, match="how much Muon keeps"):
        pcn.Switch(model, [sgd, Muon([model.fc3.weight])], pcn.Budget(memory_mib=0.9))


def test_the_representation_names_all() -> None:
    model = Mlp()
    optimizers = [SGD(model.fc1.parameters()), AdamW(model.fc2.parameters())]
    assert repr(pcn.Switch(model, optimizers, at=3)).startswith("Switch(Mlp, SGD and AdamW, at=")


class Wrapper(Optimizer):
    """One that has the groups of another, under the name that Accelerate has for it or the one that SAM has."""

    def __init__(self, base: Optimizer, name: str) -> None:
        self.param_groups, self.state, self.defaults = base.param_groups, base.state, base.defaults
        setattr(self, name, base)


def test_groups_that_two_optimizers_share_are_refused() -> None:
    model = Mlp()
    base = SGD(model.parameters(), 0.1)
    for given in ([base, base], [Wrapper(base, "base_optimizer"), base], [Wrapper(base, "optimizer"), base]):
        with pytest.raises(
            pcn.ConfigError, match="share their parameter groups, so that all in these would be trained"
        ):
            pcn.Switch(model, given, SMALL)
    assert as_optimizers([base, SGD([nn.Parameter(torch.ones(1))])])


def test_a_wrapper_is_looked_through_where_its_groups_are_the_others() -> None:
    model = Mlp()
    base = AdamW(model.parameters())
    step(model, vectors(), base)
    switch_(model, Wrapper(base, "optimizer"), strict=True)
    assert all("exp_avg" in base.state[parameter] for parameter in model.parameters())
