"""Plain widths that a plan suggests: as large as the plan, coupled channels together, and a network that trains."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pcn
from pcn import models
from pcn.costs.count import count
from pcn.planner.narrowing import first_kept
from pcn.plans.wiring import Wiring, wiring_of
from random_models.choices import Choices
from random_models.model import random_case
from small import ConvNet, Residual, vectors

KINDS = {"convolutional": (ConvNet, (3, 8, 8)), "residual": (Residual, (12,))}


def planned(kind: str, rank: float) -> tuple[nn.Module, Tensor, pcn.Plan, pcn.ChannelGraph]:
    torch.manual_seed(0)
    make, shape = KINDS[kind]
    model, x = make(), torch.randn(40, *shape)
    stats = pcn.analyze(model, [x])
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=rank, skip_larger=False))
    return model, x, plan, pcn.trace(model, x)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.floats(0.2, 0.9))
def test_the_plain_network_runs_trains_and_is_no_larger(kind: str, rank: float) -> None:
    model, x, plan, graph = planned(kind, rank)
    widths = plan.suggest_widths(graph)
    narrow = plan.narrowed(graph, widths)
    narrow.reshape_(model)
    model(x).sum().backward()
    assert not narrow.transformed
    for name, width in widths.items():
        assert model.get_submodule(name).weight.shape[0] == width
    assert narrow.trainable_after <= plan.trainable_after
    assert model(x).shape[-1] == 5  # what comes out stays


@pytest.mark.parametrize("config", [{"rank": 0.5}, {"rank": 1.0}, {"rank": 1.0, "keep_outputs": 0.5}])
def test_the_graph_of_a_model_that_is_transformed_already_is_refused(config: dict[str, float]) -> None:
    model, x = ConvNet().eval(), torch.randn(40, 3, 8, 8)
    before = pcn.trace(model, x)
    plan = pcn.compress_(model, [x], pcn.PCNConfig(**config, skip_larger=False))
    for ask in (plan.suggest_widths, lambda graph: plan.narrowed(graph, {})):
        with pytest.raises(pcn.PlanError, match="of a transformed model, or of another; trace the model as it was"):
            ask(pcn.trace(model, x))
        ask(before)


def test_the_graph_of_another_model_is_refused() -> None:
    _, _, plan, _ = planned("residual", 0.4)
    with pytest.raises(pcn.PlanError, match=r"'stem' has \(inputs, outputs\) \(12, 24\), in the plan \(12, 16\)"):
        plan.suggest_widths(pcn.trace(nn.ModuleDict({"stem": nn.Linear(12, 24)}), vectors(), forward=_stem))


def _stem(model: nn.Module, batch: Tensor) -> Tensor:
    return model.get_submodule("stem")(batch)


def test_channels_that_meet_in_a_sum_get_one_width() -> None:
    _, _, plan, graph = planned("residual", 0.4)
    widths = plan.suggest_widths(graph)
    assert widths["stem"] == widths["block"] < 16
    assert widths["head"] == 5


def test_a_uniform_plan_suggests_a_uniformly_narrower_network() -> None:
    """A quarter of every width in rank is half of it in plain channels, which is the half-width network."""
    model = models.build("wide_resnet20").to("meta")
    example = torch.empty(2, 3, 32, 32, device="meta")
    config = models.config("wide_resnet20-pcn1")
    plan = pcn.make_plan(model, None, config, example=example)
    widths = plan.suggest_widths(pcn.trace(model, example))
    assert widths["fc"] == 10
    ratios = [width / plan.layers[name].out_features for name, width in widths.items() if name != "fc"]
    assert all(0.45 <= ratio <= 0.55 for ratio in ratios)
    assert list(widths.values()) == [*[32] * 8, *[64] * 7, *[128] * 7, 10]
    plan.narrowed(pcn.trace(model, example), widths).reshape_(model)
    assert count(model).trainable == pytest.approx(1_094_154, rel=0.03)


@cache
def conv4() -> tuple[nn.Module, pcn.ChannelGraph, Tensor]:
    """A network that flattens: its first dense layer reads 128 channels at 64 positions."""
    model, example = models.build("conv4").to("meta"), torch.empty(2, 3, 32, 32, device="meta")
    return model, pcn.trace(model, example), example


def conv4_plan(**ranks: int) -> pcn.Plan:
    model, graph, example = conv4()
    rules = {name: pcn.LayerRule(rank=rank) for name, rank in ranks.items()}
    config = pcn.PCNConfig(rank=None, layers=rules, skip_larger=False)
    return pcn.make_plan(model, None, config, graph=graph, example=example)


@settings(max_examples=15, deadline=None)
@example((15, 9, 19, 16))
@given(st.tuples(st.integers(8, 64), st.integers(8, 64), st.integers(16, 128), st.integers(16, 128)))
def test_behind_a_flatten_every_direction_asks_for_a_channel(ranks: tuple[int, int, int, int]) -> None:
    """The last convolution's width is to the rank of its reader as those before it are, unless they have no more."""
    producers, readers = ("conv1", "conv2", "conv3", "conv4"), ("conv2", "conv3", "conv4", "fc1")
    plan, graph = conv4_plan(**dict(zip(readers, ranks, strict=True)), fc2=64), conv4()[1]
    widths = plan.suggest_widths(graph, step=1)
    assert 0.97 * plan.trainable_after <= plan.narrowed(graph, widths).trainable_after <= plan.trainable_after
    asked = dict(zip(producers, ranks, strict=True))
    # A width is rounded, and one that is less than one above its wish may be one more where that still fits.
    least = max((widths[name] - 2.0) / asked[name] for name in producers)
    most = min((widths[n] + 0.5) / asked[n] for n in producers if widths[n] < plan.layers[n].out_features)
    assert least <= most


def test_ranks_as_a_planner_gives_them_to_conv4_let_no_layer_shrink_to_a_few_channels() -> None:
    plan = conv4_plan(conv2=32, conv3=32, conv4=32, fc1=48, fc2=48)
    widths = plan.suggest_widths(conv4()[1])
    assert all(width >= plan.layers[name].out_features / 8 for name, width in widths.items())


def test_more_rank_behind_a_flatten_suggests_no_fewer_channels() -> None:
    ranks = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 8192)
    plans = [conv4_plan(conv2=32, conv3=32, conv4=32, fc1=rank, fc2=48) for rank in ranks]
    widths = [plan.suggest_widths(conv4()[1], step=1)["conv4"] for plan in plans]
    assert widths == sorted(widths)
    assert widths[-1] == 128


def test_full_rank_suggests_full_widths() -> None:
    plan = conv4_plan(conv1=3, conv2=64, conv3=64, conv4=128, fc1=8192, fc2=256, output=256)
    assert plan.suggest_widths(conv4()[1]) == {name: layer.out_features for name, layer in plan.layers.items()}


def test_channels_that_a_plan_drops_are_not_asked_for_behind_a_flatten() -> None:
    """Fifty directions of what sixteen channels hold ask for sixteen."""
    model, graph, example = conv4()
    rules = {"conv2": 32, "conv3": 32, "fc1": 50, "fc2": 48}
    layers = {name: pcn.LayerRule(rank=rank) for name, rank in rules.items()}
    dropping = {**layers, "conv4": pcn.LayerRule(rank=32, keep_outputs=16)}
    config = pcn.PCNConfig(rank=None, layers=dropping, skip_larger=False)
    plan = pcn.make_plan(model, None, config, graph=graph, example=example)
    assert plan.layers["fc1"].kept_inputs == 16 * 64
    widths = plan.suggest_widths(graph, step=1)
    assert widths["conv4"] == pytest.approx(widths["conv3"] / 2, abs=1)


@settings(max_examples=15, deadline=None)
@given(
    st.tuples(st.integers(24, 64), st.integers(24, 64), st.integers(48, 128), st.integers(48, 128)), st.integers(4, 8)
)
def test_widths_are_in_steps_as_far_as_the_size_allows(ranks: tuple[int, int, int, int], classifier: int) -> None:
    """Half of the layers at most make up for what steps of eight leave, and the size is met within three percent.

    In narrower networks a channel is more than that, and what steps would change is more than may be left.
    """
    plan = conv4_plan(**dict(zip(("conv2", "conv3", "conv4", "fc1"), ranks, strict=True)), fc2=64, output=classifier)
    widths = plan.suggest_widths(conv4()[1])
    narrow = plan.narrowed(conv4()[1], widths)
    assert 0.97 * plan.trainable_after <= narrow.trainable_after <= plan.trainable_after
    assert sum(width % 2 for width in widths.values()) <= 3
    assert widths["fc2"] >= 10  # which ten classes are told from


def test_a_classifier_reads_as_many_channels_as_it_has_classes() -> None:
    """Eight directions of 256 ask for five channels of a plain network, and ten classes for ten."""
    plan = conv4_plan(conv2=40, conv3=40, conv4=48, fc1=64, fc2=64, output=8)
    assert plan.suggest_widths(conv4()[1], step=1)["fc2"] == 10
    assert plan.suggest_widths(conv4()[1])["fc2"] in (10, 12)


class Heads(nn.Module):
    """Classes told from positions, from two layers side by side, through a softmax, and beside a number."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.a, self.b, self.number = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 1)
        self.head = nn.Linear({"positions": 4 * 64, "beside": 128}.get(kind, 64), 10)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        a = self.a(x).relu()
        b = self.b(a).relu()
        if self.kind == "positions":
            return self.head(b.unsqueeze(-1).repeat(1, 1, 4).flatten(1))
        if self.kind == "beside":
            return self.head(torch.cat([a, b], 1))
        return self.head(b).log_softmax(-1) if self.kind == "softmax" else (self.head(b), self.number(b))


@pytest.mark.parametrize(("kind", "least"), [("positions", 3), ("beside", 5), ("softmax", 10), ("two", 10)])
def test_what_a_classifier_reads_is_counted_as_it_reads_it(kind: str, least: int) -> None:
    model, x = Heads(kind), torch.randn(2, 64)
    graph = pcn.trace(model, x)
    ranks = {"a": 16, "b": 16, "head": 1, "number": 1}
    rules = {name: pcn.LayerRule(rank=rank) for name, rank in ranks.items() if f"{name}.weight" in graph.tensors}
    config = pcn.PCNConfig(rank=None, layers=rules, skip_larger=False)
    plan = pcn.make_plan(model, None, config, graph=graph, example=x)
    widths = plan.suggest_widths(graph, step=1)
    assert least <= widths["b"] <= least + 1
    assert widths["a"] > least


def test_outputs_that_would_leave_the_others_little_ask_for_no_channel_each() -> None:
    """An autoencoder's hidden layers stay in proportion: its many outputs are no classes."""
    sizes, x = (64, 96, 96, 64), torch.ones(1, 64)
    model = nn.Sequential(*(part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())))
    graph = pcn.trace(model, x)
    plan = pcn.make_plan(model, None, pcn.PCNConfig(rank=0.1, skip_larger=False), graph=graph, example=x)
    widths = plan.suggest_widths(graph, step=1)
    assert widths["2"] == pytest.approx(widths["0"], abs=2)


@pytest.mark.parametrize("step", [0, -8, 2.0, True, None])
def test_steps_that_are_none_are_refused(step: object) -> None:
    _, _, plan, graph = planned("residual", 0.4)
    with pytest.raises(pcn.ConfigError, match=r"step=.*whole number of at least 1"):
        plan.suggest_widths(graph, step=step)


def test_steps_of_ones_own_are_kept_to() -> None:
    model = models.build("wide_resnet20").to("meta")
    example = torch.empty(2, 3, 32, 32, device="meta")
    graph = pcn.trace(model, example)
    plan = pcn.make_plan(model, None, pcn.PCNConfig(rank=0.3, skip_larger=False), graph=graph, example=example)
    for step in (4, 16, 12):
        widths = plan.suggest_widths(graph, step=step)
        off = [width for name, width in widths.items() if width % step and width < plan.layers[name].out_features]
        assert len(off) <= 4
        narrow = plan.narrowed(graph, widths)
        assert 0.97 * plan.trainable_after <= narrow.trainable_after <= plan.trainable_after


class Flattened(nn.Module):
    """What layers read: an image, channels that go two at a time, a sum, channels twice, positions beside means."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.grouped, self.summed = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 6, 1, groups=2), nn.Conv2d(8, 6, 1)
        self.twice, self.flat, self.pooled = nn.Conv2d(12, 5, 1), nn.Linear(20, 4), nn.Linear(5, 4)
        self.both, self.image = nn.Linear(25, 4), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        stem = self.stem(x).relu()
        block = self.grouped(stem) + self.summed(stem)
        last = self.twice(torch.cat([block, block], 1)).relu()
        means, positions = last.mean((2, 3)), last.flatten(1)
        heads = self.flat(positions) + self.pooled(means) + self.both(torch.cat([positions, means], 1))
        return heads + self.image(x.flatten(1))


def test_channels_are_counted_once_however_many_positions_are_read() -> None:
    model, x = Flattened(), torch.randn(2, 3, 2, 2)
    graph = pcn.trace(model, x)
    wiring = wiring_of(pcn.make_plan(model, None, pcn.PCNConfig(rank=2), graph=graph, example=x), graph)
    read = {name: wiring.channels_read(name) for name in wiring.inputs}
    assert read.pop("image") == 12  # no layer puts it out, and all of it stays
    assert read == {"stem": 3, "grouped": 8, "summed": 8, "twice": 6, "flat": 5, "pooled": 5, "both": 5}


def test_without_a_flatten_every_input_is_a_channel() -> None:
    model, example = models.build("wide_resnet20").to("meta"), torch.empty(2, 3, 32, 32, device="meta")
    graph = pcn.trace(model, example)
    plan = pcn.make_plan(model, None, models.config("wide_resnet20-pcn1"), graph=graph, example=example)
    wiring = wiring_of(plan, graph)
    assert all(wiring.channels_read(name) == plan.layers[name].in_features for name in wiring.inputs)


@pytest.mark.parametrize("rank", [0.5, 0.75])
@pytest.mark.parametrize("seed", [0, 6, 9, 13, 34, 42])  # a wide layer meets several narrow ones side by side, and more
def test_widths_of_channels_that_overlap_can_be_built(seed: int, rank: float) -> None:
    case = random_case(Choices.seeded(seed))
    graph = pcn.trace(case.model, case.inputs)
    config = pcn.PCNConfig(rank=rank, skip_larger=False)
    plan = pcn.make_plan(case.model, None, config, graph=graph, example=case.inputs)
    widths = plan.suggest_widths(graph)
    narrow, model = plan.narrowed(graph, widths), case.rebuild()
    narrow.reshape_(model)
    model.eval()(case.inputs)
    assert {name: narrow.layers[name].kept_outputs for name in widths} == widths
    assert narrow.slices
    assert narrow.trainable_after <= plan.trainable_after


@given(st.data())
def test_what_layers_have_got_gives_the_same_answer_again(data: st.DataObject) -> None:
    sets = st.lists(st.integers(0, 11), min_size=1, max_size=16).map(torch.tensor)
    layers = data.draw(st.dictionaries(st.sampled_from("abcde"), st.tuples(sets, sets), min_size=1))
    wiring = Wiring({name: out for name, (out, _) in layers.items()}, {n: inp for n, (_, inp) in layers.items()}, 12)
    pinned = data.draw(st.sets(st.integers(0, 11), max_size=3))
    wishes = {name: data.draw(st.integers(1, len(out))) for name, out in wiring.outputs.items()}
    kept = first_kept(wiring, wishes, pinned)
    got = {name: int(kept[out].sum()) for name, out in wiring.outputs.items()}
    assert torch.equal(first_kept(wiring, got, pinned), kept)
    assert all(kept[sorted(family)].any() for family in wiring.families)


class Pinned(nn.Module):
    """Two layers in the middle whose outputs must stay."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.a, self.sm = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.mid, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.sm(self.a(self.inp(x).relu()).softmax(-1)).softmax(-1)
        return self.head(self.mid(h).relu())


@settings(max_examples=25, deadline=None)
@given(st.fixed_dictionaries({name: st.integers(1, 32) for name in ("inp", "a", "sm", "mid", "head")}))
def test_the_size_is_met_or_what_must_stay_is_said(ranks: dict[str, int]) -> None:
    model, x = Pinned(), torch.randn(2, 32)
    graph = pcn.trace(model, x)
    layers = {name: pcn.LayerRule(rank=rank) for name, rank in ranks.items()}
    plan = pcn.make_plan(model, None, pcn.PCNConfig(rank=None, layers=layers), graph=graph, example=x)
    fixed = 64 + 64 * 65 + 10  # biases of what reads channels that may go, and the layer between two softmaxes
    try:
        widths = plan.suggest_widths(graph)
    except pcn.ConfigError as error:
        assert f"which trains {plan.trainable_after:,}: channels that must stay take {fixed:,}, most" in str(error)
        assert "'sm' (aten.softmax works across channels)" in str(error)
        least = int(re.search(r"at least ([\d,]+)", str(error))[1].replace(",", ""))
        assert max(fixed, plan.trainable_after) < least < 1.6 * fixed
        return
    narrow = plan.narrowed(graph, widths)
    assert 0.97 * plan.trainable_after <= narrow.trainable_after <= plan.trainable_after
    assert widths["inp"] >= min(2, ranks["a"])
    assert widths["mid"] >= min(2, ranks["head"])


def test_a_network_of_which_nothing_may_go_cannot_be_narrower() -> None:
    model, x = nn.Sequential(nn.Linear(12, 8)), torch.randn(2, 12)
    plan = pcn.make_plan(model, None, pcn.PCNConfig(rank=3), example=x)
    with pytest.raises(pcn.ConfigError, match=r"trains 32: channels that must stay take 104, .*larger budget"):
        plan.suggest_widths(pcn.trace(model, x))


def test_an_unknown_layer_is_named() -> None:
    _, _, plan, graph = planned("residual", 0.4)
    with pytest.raises(pcn.ConfigError, match=r"'stm'.*did you mean 'stem'"):
        plan.narrowed(graph, {"stm": 3})


@pytest.mark.parametrize(
    ("widths", "said"),
    [
        ({"stem": 0}, "from 1 to 16"),
        ({"stem": 2.5}, "from 1 to 16"),
        ({"stem": 99}, "from 1 to 16"),
        ({"head": 2}, "'head' cannot have 2 outputs of 5"),
        (
            {"stem": 4, "block": 12},
            "'block' is given 12 outputs, but shares them with layers such as 'stem' that leave it 4",
        ),
    ],
)
def test_widths_that_cannot_be_are_refused(widths: dict[str, int], said: str) -> None:
    _, _, plan, graph = planned("residual", 0.4)
    with pytest.raises(pcn.PCNError, match=said):
        plan.narrowed(graph, widths)


class Shuffled(nn.Module):
    """Channels that go two at a time: those of the two groups of a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.grouped = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 6, 1, groups=2)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.grouped(self.stem(x).relu()).mean((2, 3)))


def test_channels_that_go_several_at_a_time_say_so() -> None:
    model, x = Shuffled(), torch.randn(4, 3, 2, 2)
    graph = pcn.trace(model, x)
    plan = pcn.make_plan(model, None, pcn.PCNConfig(rank=0.5), graph=graph, example=x)
    assert plan.narrowed(graph, {"stem": 4}).layers["stem"].kept_outputs == 4
    with pytest.raises(pcn.CouplingError, match="'stem' cannot have 5 outputs: they go 2 at a time; 4 would do"):
        plan.narrowed(graph, {"stem": 5})


@pytest.mark.parametrize("frozen", [(), ("0",), ("2",), ("0", "2"), ("0", "2", "4", "6")])
@pytest.mark.parametrize("what", ["all", "weight", "bias"])
def test_frozen_layers_keep_their_widths_and_the_others_train_as_much_as_the_plans(
    frozen: tuple[str, ...], what: str
) -> None:
    torch.manual_seed(0)
    sizes, x = (32, 96, 96, 96, 10), torch.randn(256, 32)
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers[:-1])
    for name in frozen:
        layer = model.get_submodule(name)
        (layer if what == "all" else getattr(layer, what)).requires_grad_(False)
    graph, stats = pcn.trace(model, x), pcn.analyze(model, [x])
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=0.5, layers=dict.fromkeys(frozen, pcn.LayerRule())))
    widths = plan.suggest_widths(graph)
    if what != "bias":
        assert all(widths[name] == plan.layers[name].out_features for name in frozen)
    plan.narrowed(graph, widths).reshape_(model)
    model(x)
    if set(frozen) != {"0", "2", "4", "6"}:
        assert 0.95 * plan.trainable_after <= count(model).trainable <= plan.trainable_after


def test_a_frozen_layer_cannot_be_narrowed() -> None:
    model, x = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5)), vectors(4)
    model[2].requires_grad_(False)
    graph = pcn.trace(model, x)
    plan = pcn.make_plan(model, None, pcn.PCNConfig(rank=0.5), graph=graph, example=x)
    for name in ("0", "2"):  # what it reads stays too
        with pytest.raises(
            pcn.CouplingError, match=f"'{name}' cannot have 8 outputs of 16: the weight of '2' is frozen"
        ):
            plan.narrowed(graph, {name: 8})


class Tied(nn.Module):
    """Two layers with one weight, which is counted once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.wide, self.head = (
            nn.Linear(*sizes) for sizes in ((64, 64), (64, 64), (64, 128), (128, 5))
        )
        self.again.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.again, self.wide):
            x = layer(x).relu()
        return self.head(x)


@pytest.mark.parametrize("share", [1.0, 0.8, 0.5])
def test_a_weight_that_two_layers_have_is_counted_once(share: float) -> None:
    torch.manual_seed(0)
    model, x = Tied(), torch.randn(256, 64)
    graph = pcn.trace(model, x)
    plan = pcn.make_plan(model, pcn.analyze(model, [x]), pcn.Budget(params=share))
    plan.narrowed(graph, plan.suggest_widths(graph)).reshape_(model)
    model(x)
    assert 0.95 * plan.trainable_after <= count(model).trainable <= plan.trainable_after
