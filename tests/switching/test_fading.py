"""A soft switch: weights fade into the planned subspaces, and the cut at the end changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pcn
from pcn.nn import PCModule
from small import Mlp


class Normed(nn.Module):
    """Convolutions without a bias, followed by batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, groups=2, bias=False), nn.BatchNorm2d(8)
        self.fc2 = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc2(torch.relu(self.bn2(self.conv2(x))).mean((2, 3)))


KINDS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {"dense": (Mlp, (12,)), "normed": (Normed, (3, 6, 6))}
CONFIG = {"rank": 0.5, "skip_larger": False}


def built(kind: str) -> tuple[nn.Module, Tensor, torch.optim.Optimizer]:
    torch.manual_seed(0)
    make, shape = KINDS[kind]
    model, x = make().double(), torch.randn(64, *shape, dtype=torch.double) + 0.5
    return model, x, torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)


def step(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), torch.arange(len(x)) % 5).backward()
    optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options", [{}, {"basis": "response", "precondition": 0.5, "sized_for": "adam"}, {"output_rank": 0.75}]
)
def test_the_cut_at_the_end_changes_nothing(kind: str, options: dict[str, Any]) -> None:
    model, x, optimizer = built(kind)
    switch = pcn.Switch(model, optimizer, pcn.PCNConfig(**CONFIG, **options), at=1, fade=4)
    step(model, x, optimizer)
    assert switch.after_epoch(1, [x]) is None
    for number in range(2, 5):
        step(model, x, optimizer)
        assert switch.after_step(number, [x]) is None
        assert not any(isinstance(module, PCModule) for module in model.modules())
    optimizer.zero_grad()
    fading = switch._fading
    assert fading is not None
    faded = {name: p.clone() for name, p in model.named_parameters()}
    fading.step_(model)  # the last step of fading, by hand, to see the function just before the cut
    expected = model(x)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(faded[name])
    fading.done -= 1
    assert switch.after_step(5, [x]) is not None
    torch.testing.assert_close(model(x), expected, rtol=1e-7, atol=1e-7)
    step(model, x, optimizer)
    assert switch.after_step(6, [x]) is None
    assert switch.after_epoch(2, [x]) is None


def test_each_step_takes_the_same_share_of_what_was_there() -> None:
    model, x, _ = built("dense")
    switch = pcn.Switch(model, None, pcn.PCNConfig(**CONFIG), at=1, fade=5, keep_statistics=True)
    switch.after_epoch(1, [x])
    assert switch.statistics is not None
    basis = switch.statistics.basis("fc2", 12)
    outside = torch.eye(24, dtype=torch.double) - basis @ basis.T
    sizes = [float((model.fc2.weight @ outside).detach().norm())]
    for number in range(2, 6):
        switch.after_step(number, [x])
        sizes.append(float((model.fc2.weight @ outside).detach().norm()))
    assert [size / sizes[0] for size in sizes] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


def test_a_run_that_is_resumed_while_it_fades_ends_like_one_that_was_not() -> None:
    ends = []
    for broken in (False, True):
        model, x, optimizer = built("dense")
        switch = pcn.Switch(model, optimizer, pcn.PCNConfig(**CONFIG), at=1, fade=4)
        switch.after_epoch(1, [x])
        for number in range(2, 9):
            step(model, x, optimizer)
            switch.after_step(number, [x])
            if broken and number == 3:
                states = [part.state_dict() for part in (switch, model, optimizer)]
                model, x, optimizer = built("dense")
                switch = pcn.Switch(model, optimizer, pcn.PCNConfig(**CONFIG), at=1, fade=4)
                for part, state in zip((switch, model, optimizer), states, strict=True):
                    part.load_state_dict(state)
        assert isinstance(model.fc2, PCModule)
        ends.append(model.state_dict())
    for name, tensor in ends[0].items():
        assert torch.equal(tensor, ends[1][name]), name


@pytest.mark.parametrize(
    ("options", "more", "said"),
    [
        ({"keep_dropped": True}, {}, "keeps what fade takes away"),
        ({"keep_outputs": 0.5}, {}, "fade=3 with keep_outputs: channels that are dropped cannot fade"),
        (
            {"layers": {"fc1": pcn.LayerRule(rank=6, keep_outputs=12)}},
            {},
            r"keep_outputs in layers\['fc1'\]: .* cannot fade",
        ),
        ({}, {"fade": -1}, "fade=-1"),
    ],
)
def test_what_cannot_fade_is_refused_at_once(options: dict[str, Any], more: dict[str, Any], said: str) -> None:
    model, _, _ = built("dense")
    with pytest.raises(pcn.ConfigError, match=said):
        pcn.Switch(model, None, pcn.PCNConfig(**CONFIG, **options), at=1, **{"fade": 3, **more})


def test_a_budget_that_drops_channels_cannot_fade() -> None:
    model, _, _ = built("dense")
    with pytest.raises(pcn.ConfigError, match="fade=3 with drop_channels"):
        pcn.Switch(model, None, pcn.Budget(params=0.5, step=1, drop_channels=True), fade=3)


def test_a_layer_with_nothing_to_make_up_for_its_mean_is_refused() -> None:
    model, x, _ = built("dense")
    model.fc2 = nn.Linear(24, 24, bias=False).double()
    with pytest.raises(pcn.ConfigError, match="'fc2' cannot fade"):
        pcn.Switch(model, None, pcn.PCNConfig(**CONFIG), at=1, fade=3).after_epoch(1, [x])
    named = pcn.PCNConfig(**CONFIG, layers={"fc2": pcn.LayerRule(rank=8)})
    with pytest.raises(pcn.ConfigError, match="'fc2' cannot fade"):
        pcn.Switch(model, None, named, fade=3)
    with pytest.raises(pcn.ConfigError, match="'0' cannot fade"):
        pcn.Switch(nn.Sequential(nn.Linear(8, 64, bias=False), nn.ReLU()), None, fade=3)


def test_what_the_cut_could_not_do_is_refused_before_anything_fades() -> None:
    model, x, _ = built("dense")
    model.held = [model.fc2]  # the model calls this one, whatever stands under its name
    model.forward = lambda x: model.fc3(torch.tanh(model.held[0](torch.tanh(model.fc1(x)))))
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(pcn.PlanError, match="still calls the old 'fc2'"):
        pcn.Switch(model, None, pcn.PCNConfig(**CONFIG), at=1, fade=3).after_epoch(1, [x])
    model, x, _ = built("dense")
    optimizer = torch.optim.RMSprop(model.parameters(), 0.01)
    step(model, x, optimizer)
    with pytest.raises(pcn.PlanError, match="RMSprop"):
        pcn.Switch(model, optimizer, pcn.PCNConfig(**CONFIG), at=1, fade=3, strict=True).after_epoch(1, [x])
    assert before.keys() == dict(model.named_parameters()).keys()
    assert not any(isinstance(module, PCModule) for module in model.modules())


def test_an_averaged_copy_fades_too() -> None:
    model, x, _ = built("dense")
    ema = torch.optim.swa_utils.AveragedModel(model)
    switch = pcn.Switch(model, None, pcn.PCNConfig(**CONFIG), at=1, fade=4, ema=ema)
    switch.after_epoch(1, [x])
    for number in range(2, 5):
        switch.after_step(number, [x])
    torch.testing.assert_close(ema.module.fc2.weight, model.fc2.weight)
    switch.after_step(5, [x])
    torch.testing.assert_close(ema(x), model(x))


def test_half_precision_does_not_round_the_fading_away() -> None:
    model, x, _ = built("dense")
    model, x = model.half(), x.half()
    switch = pcn.Switch(model, None, pcn.PCNConfig(**CONFIG), at=1, fade=1000, keep_statistics=True)
    switch.after_epoch(1, [x])
    assert switch.statistics is not None
    basis = switch.statistics.basis("fc2", 12)
    outside = torch.eye(24, dtype=torch.double) - basis @ basis.T
    start = float((model.fc2.weight.double() @ outside).detach().norm())
    for number in range(2, 502):
        switch.after_step(number, [x])
    left = float((model.fc2.weight.double() @ outside).detach().norm()) / start
    assert left == pytest.approx(0.5, abs=0.08)


def test_batch_norm_can_be_recalibrated_after_fading() -> None:
    model, x, optimizer = built("normed")
    switch = pcn.Switch(model, optimizer, pcn.PCNConfig(**CONFIG), at=1, fade=2, recalibrate=True)
    switch.after_epoch(1, [x])
    for number in (2, 3):
        plan = switch.after_step(number, [x])
    assert plan is not None
    trained = model.train()(x)
    torch.testing.assert_close(model.eval()(x), trained, rtol=0.2, atol=0.2)


def test_a_loop_that_tells_no_steps_hears_of_it() -> None:
    model, x, _ = built("dense")
    switch = pcn.Switch(model, None, pcn.PCNConfig(**CONFIG), at=1, fade=4)
    switch.after_epoch(1, [x])
    with pytest.raises(pcn.ConfigError, match=r"call switch.after_step"):
        switch.after_epoch(2, [x])


def test_that_no_steps_are_told_shows_after_a_resume_too() -> None:
    switches = [pcn.Switch(built("dense")[0], None, pcn.PCNConfig(**CONFIG), at=1, fade=9) for _ in range(2)]
    x = built("dense")[1]
    switches[0].after_epoch(1, [x])
    switches[0].after_step(2, [x])
    switches[0].after_epoch(2, [x])
    switches[1].load_state_dict(switches[0].state_dict())
    with pytest.raises(pcn.ConfigError, match=r"call switch.after_step"):
        switches[1].after_epoch(3, [x])


def test_fading_may_begin_with_the_last_step_of_an_epoch() -> None:
    model, x, _ = built("dense")
    switch = pcn.Switch(model, None, pcn.PCNConfig(**CONFIG), at=pcn.AfterStep(2), fade=4)
    for number in (1, 2):
        switch.after_step(number, [x])
    assert switch.begun
    assert switch.after_epoch(1, [x]) is None
    with pytest.raises(pcn.ConfigError, match=r"call switch.after_step"):
        switch.after_epoch(2, [x])


def begun(width: int = 24, **config: Any) -> pcn.Switch:
    """A switch that has begun to fade."""
    torch.manual_seed(0)
    switch = pcn.Switch(Mlp(width), None, pcn.PCNConfig(**{**CONFIG, **config}), fade=4)
    switch.after_epoch(1, [torch.randn(64, 12)])
    return switch


def test_a_state_from_the_middle_of_a_fade_does_not_fit_another_model() -> None:
    state = begun().state_dict()
    for other in (pcn.Switch(Mlp(30), None), begun(30)):
        before = other.state_dict()
        with pytest.raises(pcn.PlanError, match=r"saved with another model: 'fc1' has .* build it with the sizes"):
            other.load_state_dict(state)
        assert str(other.state_dict()) == str(before)


def test_a_state_does_not_fit_a_model_that_was_switched_by_another_plan() -> None:
    states = {}
    for rank in (0.5, 0.25):
        switch = begun(rank=rank)
        switch.now([torch.randn(64, 12)])
        states[rank] = switch.state_dict()
    switch.load_state_dict(states[0.25])
    with pytest.raises(pcn.PlanError, match=r"another plan: 'fc1' has rank 6 of 12 .* rank 3 of 12 .* build the"):
        switch.load_state_dict(states[0.5])
    with pytest.raises(pcn.PlanError, match="from before the switch"):
        switch.load_state_dict(begun().state_dict())
    alone = begun(rank=None, output_rank=0.5)
    alone.now([torch.randn(64, 12)])
    with pytest.raises(pcn.PlanError, match=r"another plan: 'fc1' has all 12 inputs and \d+ trained outputs, a bias"):
        switch.load_state_dict(alone.state_dict())


@pytest.mark.parametrize("state", [{}, None, [1], Mlp().state_dict()])
def test_what_is_no_state_of_a_switch_is_refused(state: Any) -> None:
    with pytest.raises(pcn.ConfigError, match=r"no state of a switch, as it has no 'plan': give what"):
        pcn.Switch(Mlp(), None).load_state_dict(state)


def test_an_optimizers_warning_comes_once_and_a_refusal_before_anything_fades() -> None:
    model, x, _ = built("dense")
    optimizer = torch.optim.RMSprop(model.parameters(), 0.01)
    options: dict[str, Any] = {"config": pcn.PCNConfig(**CONFIG), "fade": 2}
    with pytest.raises(pcn.PlanError, match="RMSprop is not"):
        pcn.Switch(model, optimizer, **options, strict=True).after_epoch(1, [x])
    switch = pcn.Switch(model, optimizer, **options)
    switch.after_epoch(1, [x])
    switch.after_step(1, [x])
    with pytest.warns(UserWarning, match="RMSprop is not") as told:
        assert switch.after_step(2, [x]) is not None
    assert len(told) == 1


def test_a_cut_that_fails_leaves_the_fading_as_it_is_and_can_be_tried_again() -> None:
    model, x, optimizer = built("dense")
    switch = pcn.Switch(model, optimizer, pcn.PCNConfig(**CONFIG), fade=2)
    switch.after_epoch(1, [x])
    switch.after_step(1, [x])
    held = optimizer.param_groups[0]["params"]
    optimizer.param_groups[0]["params"] = []
    with pytest.raises(pcn.PlanError, match="holds none"):
        switch.now([x])
    with pytest.raises(pcn.PlanError, match="holds none"):
        switch.after_step(2, [x])
    assert switch.begun
    optimizer.param_groups[0]["params"] = held
    before = model(x)
    assert switch.after_step(3, [x]) is not None
    torch.testing.assert_close(model(x), before)


def test_what_has_begun_to_fade_is_cut_to_the_same_plan_at_once() -> None:
    model, x, optimizer = built("dense")
    switch = pcn.Switch(model, optimizer, pcn.PCNConfig(rank=pcn.ExplainedVariance(0.8)), fade=4)
    switch.after_epoch(1, [x])
    planned = switch.planned
    assert planned is not None
    for step in (1, 2, 3):
        switch.after_step(step, [x])
    assert switch.now([x]) is planned  # and not one of a model of which most has faded already
    assert switch.plan is planned
    assert switch.after_step(4, [x]) is None


class Frozen(Normed):
    """Keeps its second batch norm as it is, whatever mode it trains in."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.bn2.eval()
        return self


@pytest.mark.parametrize("mode", [True, False])
def test_a_frozen_batch_norm_takes_no_mean_off(mode: bool) -> None:
    model, x = Frozen().train(mode), torch.randn(32, 3, 6, 6)
    stats = pcn.analyze(model, [x])
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(**CONFIG))
    assert [plan.layers[name].batch_normed for name in ("conv1", "conv2", "fc2")] == [True, False, False]
    assert pcn.Plan.from_json(plan.to_json()) == plan
    assert [module.training for module in (model, model.bn1, model.bn2)] == [mode, mode, False]
    switch = pcn.Switch(model, torch.optim.SGD(model.parameters(), 0.1), pcn.PCNConfig(**CONFIG), at=1, fade=4)
    with pytest.raises(pcn.ConfigError, match=r"'conv2' cannot fade: .* no batch norm that trains"):
        switch.after_epoch(1, [x])
