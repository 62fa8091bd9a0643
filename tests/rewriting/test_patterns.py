"""Directions that are read in patterns of taps: fewer trained numbers, and nothing lost where patches hold no more."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import pcn
from pcn.errors import CheckpointError, ConfigError, StatisticsError
from pcn.fusion import fuse_
from pcn.maths import moments
from pcn.maths.moments import along_patterns, patterns_told_apart
from pcn.maths.patterns import Patterns, owners
from pcn.nn import PCConv1d, PCConv2d, PCConv3d
from pcn.rewriting.directions import FLOOR
from pcn.rewriting.fold import fold_
from pcn.rewriting.plain import to_plain
from pcn.rewriting.taps import tap_moments

CONVS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def built(padding: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=padding, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 8, 3, padding=padding, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    ).double()


def images(number: int = 48) -> Tensor:
    return torch.randn(number, 3, 9, 9, dtype=torch.double, generator=torch.Generator().manual_seed(1))


def flat_images(number: int = 48) -> Tensor:
    """Images of one colour each: every patch is a constant."""
    return images(number).mean((2, 3), keepdim=True).expand(-1, -1, 9, 9).contiguous() * 9


def config(**options: Any) -> pcn.PCNConfig:
    return pcn.PCNConfig(**{"rank": 1.0, "skip_larger": False, "exclude": ("0", "8"), **options})


def applied(model: nn.Sequential, x: Tensor, wish: pcn.PCNConfig, **options: Any) -> pcn.Plan:
    stats = pcn.analyze(model, [x], mode="batch")
    return pcn.make_plan(model, stats, wish).apply_(model, stats, **options)


@pytest.mark.parametrize("precondition", [0.0, 1.0])
def test_nothing_is_lost_of_patches_that_are_one_pattern(precondition: float) -> None:
    model, x = built(padding=0), flat_images()
    expected = model(x)
    plan = applied(model, x, config(kernel_rank=1, precondition=precondition))
    assert model[3].weight.shape == (8, 12)
    assert model[3].kernel_rank == plan.layers["3"].kernel_rank == 1
    torch.testing.assert_close(model(x), expected, rtol=1e-6, atol=1e-8)


def test_as_many_patterns_as_taps_are_the_taps_themselves() -> None:
    model, x = built(), images()
    plan = applied(model, x, config(kernel_rank=9))
    assert plan.layers["3"].kernel_rank is None
    assert model[3].weight.shape == (8, 12, 3, 3)


def test_more_patterns_keep_more_of_the_response() -> None:
    whole, x = built(), images()
    before = whole[:4](x)
    errors = []
    for patterns in (1, 3, 6, 8, 9):
        model = copy.deepcopy(whole)
        applied(model, x, config(kernel_rank=patterns))
        lost = (model[:4](x) - before).detach()
        errors.append(float((lost - lost.mean((0, 2, 3), True)).square().mean()))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > errors[3] > 1e-6 > errors[4]


def test_patterns_go_where_patches_need_them() -> None:
    """One channel of noise needs all nine, and eleven of a colour each one pattern: 20 in all, and there are 24."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(12, 8, 3, bias=False), nn.BatchNorm2d(8)).double()
    x = torch.randn(200, 12, 1, 1, dtype=torch.double).expand(-1, -1, 6, 6).contiguous()
    noise = torch.randn(200, 6, 6, dtype=torch.double)
    x[:, 5] = 3 * (noise - noise.mean((1, 2), keepdim=True))  # which goes with no colour
    expected = model(x)
    applied(model, x, pcn.PCNConfig(rank=1.0, kernel_rank=2, skip_larger=False))
    counts = model[0].kernel_mask.sum(1).sort().values
    assert counts[-1] == 9
    assert counts[0] >= 1
    torch.testing.assert_close(model(x), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("precondition", [0.0, 0.5, 1.0])
def test_a_direction_and_its_patterns_are_preconditioned_as_one(precondition: float) -> None:
    model, x = built(padding=0), images(200)
    with torch.no_grad():
        model[1].weight.copy_(torch.logspace(-2, 1, 12))  # so that directions differ by much
    read = model[:3](x).detach()
    applied(model, x, config(kernel_rank=4, precondition=precondition))
    layer = model[3]
    patterns = layer.tap_patterns
    of = owners(patterns, 1)[0]
    along = torch.einsum("nmxy,mr->nrxy", read - layer.mean.view(-1, 1, 1), layer.basis)
    seen = nn.functional.conv2d(along[:, of], layer.kernel_basis.unsqueeze(1), groups=len(of))
    lengths = layer.kernel_basis.flatten(1).norm(dim=1) * layer.basis.norm(dim=0)[of]
    variances = seen.square().mean((0, 2, 3)) / lengths**2
    same = lengths * (variances + FLOOR * variances.mean()) ** (precondition / 2)
    torch.testing.assert_close(same / same.mean(), torch.ones_like(same), rtol=1e-4, atol=0)


def test_patterns_are_those_that_outputs_need_which_are_left() -> None:
    """Outputs of large weights, of which the batch norm makes little, go; those that stay are smooth."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(12, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3)).double()
    x = torch.randn(100, 12, 8, 8, dtype=torch.double)
    x += 2 * nn.functional.avg_pool2d(x, 3, 1, 1)
    with torch.no_grad():
        weight = model[0].weight
        weight[:4] = weight[:4].mean((2, 3), keepdim=True) + 0.1 * weight[:4]
        weight[4:] = 100 * (weight[4:] - weight[4:].mean((2, 3), keepdim=True))
        model[1].weight[4:] = 0.01
    before = model[0](x).detach()
    rules = {"0": pcn.LayerRule(1.0, keep_outputs=4), "3": pcn.LayerRule(3)}
    plan = applied(model, x, pcn.PCNConfig(layers=rules, kernel_rank=2, skip_larger=False))
    assert plan.kept("0.weight", 0) == (0, 1, 2, 3)
    wanted, found = ((each - each.mean((0, 2, 3), True)) for each in (before[:, :4], model[0](x).detach()))
    assert (found - wanted).square().sum() < 0.2 * wanted.square().sum()


@pytest.mark.parametrize("decay", [0.9, 0.9999])
def test_a_model_that_is_averaged_with_itself_stays_as_it_is(decay: float) -> None:
    model, x = built(), images()
    applied(model, x, config(rank=8, kernel_rank=3))
    model.eval()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
    for _ in range(20):
        average.update_parameters(model)
    torch.testing.assert_close(average(x), model(x))
    torch.testing.assert_close(copy.deepcopy(model).bfloat16().double()(x), model(x), rtol=0.1, atol=0.1)


def test_a_kernel_is_not_rounded_before_it_is_used() -> None:
    model, x = built(), images()
    applied(model, x, config(rank=8, kernel_rank=3))
    layer = model[3].float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kernel = layer.full_kernel
    assert kernel.dtype == torch.float32
    torch.testing.assert_close(kernel, layer.full_kernel, rtol=0, atol=0)


def test_counts_are_those_of_the_layer() -> None:
    model, x = built(), images()
    others = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("3."))
    plan = applied(model, x, config(rank=6, kernel_rank=4))
    layer = plan.layers["3"]
    assert layer.trainable_after == 8 * 6 * 4 + 8
    assert others + layer.trainable_after == sum(p.numel() for p in model.parameters())
    assert layer.stored_after == sum(tensor.numel() for tensor in model[3].state_dict().values())
    assert "12 -> 6 in 4 of 9 patterns" in str(plan)
    assert pcn.Plan.from_json(plan.to_json()) == plan


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_moments_say_how_large_the_response_to_any_kernel_is(data: st.DataObject) -> None:
    spatial, groups = data.draw(st.sampled_from([1, 2, 3])), data.draw(st.sampled_from([1, 2]))
    size = data.draw(st.integers(1, 3))
    how = {
        "stride": data.draw(st.integers(1, 2)),
        "dilation": data.draw(st.integers(1, 2)),
        "padding": data.draw(st.sampled_from([0, 1, "valid"])),
        "padding_mode": data.draw(st.sampled_from(["zeros", "circular"])),
    }
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    layer = CONVS[spatial](4, 6, size, groups=groups, **how)
    x = torch.randn(5, 4, *[7] * spatial, generator=generator)
    mean, directions = (torch.randn(*shape, generator=generator) for shape in ((4,), (4, 2)))
    moments = tap_moments(x, layer, mean, directions)
    along = directions.view(groups, -1, 2)
    read = torch.einsum("ngm...,gmr->ngr...", x.unflatten(1, (groups, -1)), along).flatten(1, 2)
    centre = torch.einsum("gm,gmr->gr", mean.view(groups, -1), along).flatten()
    kernel = torch.randn(2 * groups, 1, *[size] * spatial, generator=generator)
    one_each = CONVS[spatial](2 * groups, 2 * groups, size, groups=2 * groups, bias=False, **how)
    with torch.no_grad():
        one_each.weight.copy_(kernel)
        constant = (kernel.flatten(1).sum(1) * centre).view(-1, *[1] * spatial)
        expected = (one_each(read) - constant).square().transpose(0, 1).flatten(1).sum(1)
    flat = kernel.flatten(1).double()
    torch.testing.assert_close(
        torch.einsum("rk,rkl,rl->r", flat, moments, flat).float(), expected, rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", [PCConv1d, PCConv2d, PCConv3d])
def test_a_layer_of_its_own_equals_its_plain_forms(kind: Any, groups: int) -> None:
    torch.manual_seed(0)
    spatial = len(kind.stock(2, 2, 3).kernel_size)
    layer = kind(8, 6, 3, rank=3, kernel_rank=2, padding=1, groups=groups, output_rank=2, dtype=torch.double)
    nn.init.normal_(layer.mean)
    x = torch.randn(4, 8, *[5] * spatial, dtype=torch.double)
    assert layer.weight.shape == (2 * groups, 6)
    patterns = layer.kernel_basis.view(3 * groups, 2, -1)
    eye = torch.eye(2, dtype=torch.double).expand(3 * groups, 2, 2)
    torch.testing.assert_close(patterns @ patterns.mT, eye)
    if layer.groups == 1:  # zeros around the input are no zeros along directions, which the plain chain knows as well
        torch.testing.assert_close(to_plain(nn.Sequential(layer))(x), layer(x), rtol=1e-9, atol=1e-9)
    valid = copy.deepcopy(layer)
    valid.padding = (0,) * spatial
    torch.testing.assert_close(to_plain(nn.Sequential(valid), form="dense")(x), valid(x), rtol=1e-9, atol=1e-9)
    assert f"kernel_rank={2}" in str(layer)


@pytest.mark.parametrize("precondition", [0.0, 1.0])
def test_momentum_goes_along_and_back(precondition: float) -> None:
    """A step in the new coordinates sees what SGD would have gathered in them from the start."""
    model, x = built(padding=0), flat_images()
    optimizer = torch.optim.SGD(model.parameters(), 0.0, momentum=0.9)  # a rate of 0: coordinates stay
    for part in x.split(16):
        optimizer.zero_grad()
        model(part).square().mean().backward()
        optimizer.step()
    applied(model, x, config(kernel_rank=1, precondition=precondition), optimizer=optimizer)
    carried = optimizer.state[model[3].weight]["momentum_buffer"].clone()
    fresh = torch.optim.SGD(model.parameters(), 0.0, momentum=0.9)
    for part in x.split(16):
        fresh.zero_grad()
        model(part).square().mean().backward()
        fresh.step()
    found = fresh.state[model[3].weight]["momentum_buffer"]
    torch.testing.assert_close(carried, found, rtol=1e-5, atol=1e-8)
    function = model.eval()(x)
    fold_(model, optimizer=optimizer)
    assert type(model[3]) is nn.Conv2d
    assert model[3].weight.shape == (8, 12, 3, 3)
    assert optimizer.state[model[3].weight]["momentum_buffer"].abs().max() > 0
    torch.testing.assert_close(model(x), function, rtol=1e-6, atol=1e-8)


def test_squared_gradients_that_do_not_go_with_what_is_read() -> None:
    """With d apart from z, E[(d c)²] is E[d²] times the variance of the coordinate c."""
    torch.manual_seed(0)
    root = torch.randn(4, 5, 5, dtype=torch.double)
    covariance = root @ root.mT  # of 5 taps along 4 directions
    variances = torch.linalg.eigvalsh(covariance)
    of_gradient = torch.rand(6, 1, 1, dtype=torch.double)
    of_tap = covariance.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    moment = (of_gradient * of_tap).expand(6, 4, 5)
    each = Patterns(torch.empty(20, 5), torch.ones(4, 5))
    found = along_patterns(moment, (variances / of_tap).flatten(), each)
    torch.testing.assert_close(found, (of_gradient * variances).flatten(1))


def test_a_mean_that_patterns_read_is_told_apart() -> None:
    """It stands at every tap; what varies is left, or as much as taps that do not go together show."""
    torch.manual_seed(0)
    root, mean = torch.randn(4, 5, 5, dtype=torch.double), torch.randn(4, dtype=torch.double)
    scatter = root @ root.mT  # of 5 taps along 4 directions
    scatter /= scatter.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    patterns = torch.linalg.qr(torch.randn(4, 5, 5, dtype=torch.double))[0].mT
    each = Patterns(patterns.flatten(0, 1), torch.ones(4, 5))
    varies, sums = ((patterns @ scatter) * patterns).sum(2), patterns.sum(2).square()
    of_squares = mean.square()[:, None]
    relative = ((varies + of_squares * sums) / (1 + of_squares)).flatten()
    found = patterns_told_apart(relative, (1 + mean.square())[None], mean[None], each)
    spread = 1 + moments.FLOOR
    torch.testing.assert_close(found[0], (torch.maximum(varies, spread * sums / 5) / spread).flatten())
    torch.testing.assert_close(found[1], sums.flatten())


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_training_goes_on(make: Any) -> None:
    model, x = built(), images()
    labels = torch.randint(5, (len(x),), generator=torch.Generator().manual_seed(0))
    optimizer = make(model.parameters(), lr=1e-2)

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    first = [step() for _ in range(5)]
    applied(model, x, config(rank=8, kernel_rank=5, precondition=1.0), optimizer=optimizer)
    later = [step() for _ in range(20)]
    assert later[-1] < first[0]
    assert model[3].weight.grad is not None
    assert model[3].kernel_basis.grad is None


def test_saved_and_loaded_and_fused_it_computes_the_same(tmp_path: Path) -> None:
    model, x = built(), images()
    applied(model, x, config(rank=8, kernel_rank=3))
    expected = model.eval()(x)
    pcn.save(model, tmp_path / "saved")
    torch.testing.assert_close(pcn.load(built(), tmp_path / "saved").eval()(x), expected)
    state = model.state_dict()
    state["3.kernel_mask"] = torch.ones_like(state["3.kernel_mask"])
    with pytest.raises(RuntimeError, match=r"3.kernel_mask gives directions \[72\] patterns of taps, there are 24"):
        copy.deepcopy(model).load_state_dict(state)
    torch.testing.assert_close(to_plain(model).eval()(x), expected)
    for form in ("fused", "factored", "folded"):
        fuse_(model, x, forms=form)
        torch.testing.assert_close(model(x), expected, rtol=1e-7, atol=1e-9)


def test_a_switch_fades_to_it_and_is_resumed() -> None:
    x, wish = images(), config(rank=6, kernel_rank=2)
    once, model, other = built(), built(), built()
    pcn.Switch(once, None, wish, at=1).after_epoch(1, [x])
    switch = pcn.Switch(model, None, wish, at=1, fade=3)
    assert switch.after_epoch(1, [x]) is None
    for step in range(3):
        switch.after_step(step, [x])
    assert switch.plan is not None
    torch.testing.assert_close(model(x), once(x), rtol=1e-7, atol=1e-9)  # nothing was trained meanwhile
    again = pcn.Switch(other, None, wish, at=1)
    again.load_state_dict(switch.state_dict())
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x), model(x))


def test_a_fade_of_another_version_is_refused() -> None:
    model, x = built(), images()
    switch = pcn.Switch(model, None, config(rank=6, kernel_rank=2), at=1, fade=3)
    switch.after_epoch(1, [x])
    state = switch.state_dict()
    for tensors in state["fading"]["bases"].values():
        del tensors["pattern_mask"]
    with pytest.raises(CheckpointError, match="another version of pcn"):
        pcn.Switch(built(), None, config(rank=6, kernel_rank=2), at=1, fade=3).load_state_dict(state)


def test_a_budget_has_room_for_more_directions() -> None:
    model, x = built(), images()
    stats = pcn.analyze(model, [x], mode="batch")
    every, some = (
        pcn.make_plan(model, stats, pcn.Budget(params=0.6, step=1, config=pcn.PCNConfig(kernel_rank=patterns)))
        for patterns in (None, 3)
    )
    limit = 0.6 * sum(p.numel() for p in model.parameters())
    for plan in (every, some):
        trained = copy.deepcopy(model)
        plan.apply_(trained, stats)
        assert sum(p.numel() for p in trained.parameters()) <= limit
    assert some.layers["3"].kernel_rank == 3
    assert some.layers["3"].rank > every.layers["3"].rank


def test_a_rule_says_it_for_one_layer() -> None:
    model, x = built(), images()
    stats = pcn.analyze(model, [x])
    rules = {"3": pcn.LayerRule(kernel_rank=2)}
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=0.5, layers=rules, skip_larger=False))
    assert {name: layer.kernel_rank for name, layer in plan.layers.items()} == {"0": None, "3": 2, "8": None}
    assert plan.with_rank("3", None).layers["3"].kernel_rank is None
    few = pcn.Budget(params=0.35, step=1, config=pcn.PCNConfig(layers=rules, exclude=("0",)))
    pcn.Switch(model, None, few)  # which three taps in nine make reachable
    assert pcn.make_plan(model, stats, few).layers["3"].kernel_rank == 2


def test_what_cannot_be_is_refused() -> None:
    model, x = built(), images()
    for wrong in (0, 2.0, True):
        with pytest.raises(ConfigError, match="kernel_rank"):
            pcn.PCNConfig(kernel_rank=wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="kernel_rank"):
            pcn.LayerRule(kernel_rank=wrong)  # type: ignore[arg-type]
    stats = pcn.analyze(model, [x])
    with pytest.raises(
        ConfigError, match="'kept_block' makes PCA bases of its own, which cannot go with kernel_rank=2"
    ):
        pcn.make_plan(model, stats, config(kernel_rank=2, order="kept_block"))
    with pytest.raises(ConfigError, match="'8' is asked for kernel_rank 2, but has a single tap"):
        pcn.make_plan(model, stats, pcn.PCNConfig(layers={"8": pcn.LayerRule(kernel_rank=2)}, skip_larger=False))
    with pytest.raises(ConfigError, match=r"'\d' is asked for kernel_rank 12, but has 9 taps"):
        pcn.make_plan(model, stats, config(layers={"3": pcn.LayerRule(kernel_rank=12)}))
    with pytest.raises(ConfigError, match="kernel_rank=2 beside keep_outputs, without a rank"):
        pcn.LayerRule(keep_outputs=4, kernel_rank=2)
    for wrong in (0, 10, 2.5, True, "3"):
        with pytest.raises(ConfigError, match="give a whole number from 1 to the 9 taps"):
            PCConv2d(4, 4, 3, rank=2, kernel_rank=wrong)
    stats.example = None
    with pytest.raises(StatisticsError, match="measured on a batch, and these statistics hold none"):
        pcn.make_plan(model, stats, config(kernel_rank=2))


def test_the_batch_that_patterns_are_measured_on() -> None:
    model, x = built(), images()
    stats = pcn.analyze(model, [x[:0], x])  # the first one with a sample counts
    plan = pcn.make_plan(model, stats, config(kernel_rank=3))
    other = copy.deepcopy(model)
    plan.apply_(other, pcn.analyze(other, [x]))
    plan.apply_(model, stats)
    torch.testing.assert_close(model.eval()(x), other.eval()(x))
    dark = built()
    with torch.no_grad():
        dark[1].bias.fill_(-9)  # which leaves nothing behind the ReLU
    stats = pcn.analyze(dark, [x])
    with pytest.raises(StatisticsError, match=r"'3': patterns .* on the first batch .* read little but its mean"):
        pcn.make_plan(dark, stats, config(kernel_rank=3)).apply_(dark, stats)
    assert type(dark[3]) is nn.Conv2d

    class Odd(nn.Sequential):
        def forward(self, image: Tensor) -> Tensor:
            return super().forward(image)  # type: ignore[no-any-return]

    odd = Odd(*built())

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["picture"]).square().mean()

    stats = pcn.analyze(odd, [{"picture": x}], gradients=loss)
    with pytest.raises(StatisticsError, match="the model failed on the first batch"):
        pcn.make_plan(odd, stats, config(kernel_rank=3)).apply_(odd, stats)


@pytest.mark.parametrize(
    ("padding", "size", "shape"),
    [((1, 1), 3, (2, 2)), ("same", (3, 5), (5, 4)), ("valid", 3, (5, 5)), ((0, 2), 3, (4, 3))],
)
def test_zeros_around_images_are_read_as_the_layer_reads_them(padding: Any, size: Any, shape: Any) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, size, bias=False).double()
    layer.padding = padding  # as somebody may set it later
    x, mean = torch.randn(7, 4, *shape, dtype=torch.double) + 5, torch.full((4,), 5.0, dtype=torch.double)
    moments = tap_moments(x, layer, mean, torch.eye(4, dtype=torch.double))
    ones = nn.Conv2d(4, 4, size, groups=4, bias=False, padding=padding).double()
    with torch.no_grad():
        expected = ones(x) - (ones.weight.sum((1, 2, 3)) * mean).view(-1, 1, 1)
    flat = ones.weight.detach().flatten(1)
    found = torch.einsum("rk,rkl,rl->r", flat, moments, flat)
    torch.testing.assert_close(found, expected.square().sum((0, 2, 3)))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_fresh_patterns_are_orthonormal_in_every_layout(layout: torch.memory_format) -> None:
    layer = PCConv2d(8, 6, 3, rank=4, kernel_rank=3).to(memory_format=layout)
    layer.kernel_basis.fill_(torch.nan)
    layer.reset_parameters()
    patterns = layer.kernel_basis.flatten(1).view(4, 3, 9)
    torch.testing.assert_close(patterns @ patterns.mT, torch.eye(3).expand(4, 3, 3), rtol=0, atol=1e-5)


def test_a_user_may_have_a_kernel() -> None:
    class Named(nn.Conv2d):
        def __init__(self, *sizes: int) -> None:
            super().__init__(*sizes)
            self.kernel = sizes[-1]

    model = nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), Named(12, 8, 3))
    plan = pcn.make_plan(model, pcn.analyze(model, [torch.randn(8, 3, 9, 9)]), pcn.PCNConfig(rank=4, exclude=["0"]))
    assert plan.layers["2"].rank == 4


def test_measured_costs_are_those_of_patterns() -> None:
    model, x = built(), images()
    for wish in (pcn.PCNConfig(kernel_rank=2), pcn.PCNConfig(layers={"3": pcn.LayerRule(kernel_rank=2)})):
        budget = pcn.Budget(params=0.5, memory_mib=1000, step=1, config=replace(wish, exclude=("0", "8")))
        measured = pcn.measure_costs(model, x, budget)
        assert pcn.planner.Measured.from_json(measured.to_json()) == measured
        stats = pcn.analyze(model, [x])
        plan = pcn.make_plan(model, stats, budget, measured=measured)
        assert plan.layers["3"].kernel_rank == 2
        changed = copy.deepcopy(model)
        plan.apply_(changed, stats)
        assert plan.usage is not None
        assert plan.usage.after.gradients_bytes == sum(p.nbytes for p in changed.parameters())
        other = replace(budget, config=pcn.PCNConfig(exclude=("0", "8")))
        with pytest.raises(ConfigError, match="'3' was measured with another kernel_rank"):
            pcn.make_plan(model, stats, other, measured=measured)
