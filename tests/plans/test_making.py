"""What the planner decides, and what it refuses, before anything is changed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune

from pcn import (
    ConfigError,
    CouplingError,
    ExplainedVariance,
    Fixed,
    Fraction,
    L1Threshold,
    LayerRule,
    PCNConfig,
    PCNError,
    Plan,
    PlanError,
    Threshold,
    TraceError,
    analyze,
    make_plan,
)
from pcn.costs.count import flops_per_sample
from pcn.graph import trace
from pcn.models import conv4
from pcn.running.example import Example
from small import WIDTH, Branching, HardCoded, Mlp, Residual, conv_net, images, record, vectors


def everything(**options: Any) -> PCNConfig:
    """A configuration in which no layer is left alone for its size."""
    return PCNConfig(**{"skip_larger": False, **options})


def ranks(model: nn.Module, x: Tensor, config: PCNConfig) -> dict[str, int | None]:
    return {name: layer.rank for name, layer in make_plan(model, analyze(model, [x]), config).layers.items()}


def keeping(**outputs: Any) -> PCNConfig:
    """Every layer has a rank; the named ones also drop outputs."""
    layers = {name: LayerRule(rank=0.5, keep_outputs=keep) for name, keep in outputs.items()}
    return everything(rank=0.5, layers=layers)


@given(st.integers(0, WIDTH - 1))
def test_a_threshold_is_strict(index: int) -> None:
    model, x = Mlp().double(), vectors().double()
    stats = analyze(model, [x])
    values = stats.spectrum("fc1").leading(WIDTH)[0][0].tolist()
    at = make_plan(model, stats, everything(rank=Threshold(values[index]))).layers["fc1"]
    below = make_plan(model, stats, everything(rank=Threshold(math.nextafter(values[index], 0)))).layers["fc1"]
    assert (at.rank, below.rank) == (max(index, 1), index + 1)
    assert (at.note is not None) == (index == 0)
    assert below.note is None


def test_no_variance_above_the_threshold_leaves_one_direction_with_the_reason() -> None:
    model, x = Mlp(), vectors()
    plan = make_plan(model, analyze(model, [x]), PCNConfig(rank=Threshold(1e9)))
    assert {layer.rank for layer in plan.layers.values()} == {1}
    assert plan.layers["fc2"].note == "no direction has a variance above 1e+09: one is kept"
    assert "no direction has a variance above 1e+09" in str(plan)


@pytest.mark.parametrize("rule", [Threshold(0), ExplainedVariance(0.9), ExplainedVariance(1.0)])
def test_an_input_that_does_not_vary_leaves_one_direction_with_the_reason(rule: Any) -> None:
    model = Mlp()
    plan = make_plan(model, analyze(model, [torch.ones(20, WIDTH)]), PCNConfig(rank=rule))
    assert plan.layers["fc1"].rank == 1
    assert plan.layers["fc1"].note == "no direction has a variance above 0: one is kept"


@pytest.mark.parametrize(
    ("rule", "rank"), [(5, 5), (Fixed(5), 5), (0.5, 12), (Fraction(0.25), 6), (1.0, 24), (0.001, 1)]
)
def test_ranks_by_number_and_by_fraction(rule: Any, rank: int) -> None:
    assert ranks(Mlp(), vectors(), everything(rank=None, layers={"fc2": LayerRule(rank=rule)}))["fc2"] == rank


@settings(max_examples=30)
@given(st.floats(0.1, 1))
def test_explained_variance_takes_the_fewest_directions_that_do(share: float) -> None:
    model, x = Mlp().double(), vectors().double()
    stats = analyze(model, [x])
    rank = make_plan(model, stats, everything(rank=ExplainedVariance(share))).layers["fc1"].rank
    values = torch.linalg.eigvalsh(torch.cov(x.T)).flip(0)
    held = values.cumsum(0) / values.sum()
    assert held[rank - 1] >= share - 1e-9
    assert rank == 1 or held[rank - 2] < share + 1e-9


@given(st.integers(1, 24), st.integers(1, 30))
def test_ranks_are_rounded_up_to_a_multiple_within_the_width(rank: int, multiple: int) -> None:
    config = everything(rank=None, layers={"fc2": LayerRule(rank=rank)}, multiple_of=multiple)
    assert make_plan(Mlp(), None, config).layers["fc2"].rank == min(-(-rank // multiple) * multiple, 24)


def test_groups_have_one_rank_that_counts_in_each() -> None:
    plan = make_plan(conv_net(), None, everything(rank=0.5))
    assert plan.layers["conv3"].rank == 3


@pytest.mark.parametrize("layers", [{"fc1": LayerRule(rank=WIDTH + 1)}, {"fc?": LayerRule(rank=WIDTH + 1)}])
def test_a_rank_above_the_width_is_refused(layers: dict[str, LayerRule]) -> None:
    message = "'fc1' is asked for rank 13, but its input has 12 dimensions; give 1 to 12"
    with pytest.raises(ConfigError, match=message):
        make_plan(Mlp(), None, PCNConfig(layers=layers))


def test_a_default_rank_leaves_narrower_layers_alone() -> None:
    plan = make_plan(Mlp(), None, PCNConfig(rank=WIDTH + 1, skip_larger=False))
    assert plan.layers["fc1"].rank is None
    assert plan.layers["fc1"].reason == "its input has 12 dimensions, fewer than the rank 13"
    assert plan.layers["fc2"].rank == 13


@pytest.mark.parametrize("result", [2.5, 0, True, None])
def test_a_rule_of_ones_own_must_give_a_rank_that_exists(result: Any) -> None:
    class Wrong:
        def rank(self, spectrum: Any) -> Any:
            return result

    with pytest.raises(ConfigError, match="'fc1'"):
        make_plan(Mlp(), None, PCNConfig(rank=Wrong()))


def test_an_unknown_name_is_refused_before_anything_is_traced() -> None:
    def forward(model: nn.Module, batch: Any) -> Any:
        raise AssertionError("the model was called")

    with pytest.raises(ConfigError, match=r"no layer is called 'fc4'; did you mean 'fc\d'\?"):
        make_plan(Mlp(), None, PCNConfig(exclude=["fc4"]), example=Example(vectors(), forward))


def test_who_is_left_alone_and_why() -> None:
    model, x = Mlp(), vectors()
    config = PCNConfig(rank=0.25, layers={"fc2": LayerRule(rank=2)}, exclude=["fc2"])
    plan = make_plan(model, analyze(model, [x]), config)
    assert plan.layers["fc2"].reason == "excluded by 'fc2'"
    plan = make_plan(model, analyze(model, [x], exclude=["fc3"]), PCNConfig(rank=0.25))
    assert plan.layers["fc3"].reason == "excluded by 'fc3'"
    reason = make_plan(model, None, PCNConfig(rank=1.0)).layers["fc1"].reason
    assert reason.startswith("rank 12 of 12 would not make it smaller")
    assert make_plan(model, None, everything(rank=1.0)).layers["fc1"].rank == 12


def test_layers_that_are_never_called_are_left_alone() -> None:
    model, x = Mlp(), vectors()
    model.unused = nn.Linear(WIDTH, 9)
    stats = analyze(model, [x])
    plan = make_plan(model, stats, everything(rank=0.5, keep_outputs=0.5))
    assert plan.layers["unused"].reason == "never called during the pass"
    assert plan.layers["unused"].output_reason is not None
    with pytest.raises(ConfigError, match="'unused' is asked for a rank but must be left alone: never called"):
        make_plan(model, stats, PCNConfig(layers={"unused": LayerRule(rank=2)}))
    with pytest.raises(ConfigError, match="'unused' "):
        make_plan(model, stats, PCNConfig(layers={"unused": LayerRule(keep_outputs=2)}))


@pytest.mark.parametrize("name", ["bn1", "tied", "pruned", "normed", "lazy"])
def test_naming_what_cannot_be_transformed_is_an_error_and_a_glob_is_not(name: str) -> None:
    model = conv_net()
    model.tied, model.pruned = nn.Linear(16, 5), prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5)
    model.normed, model.lazy = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.LazyLinear(3)
    model.tied.weight = model.fc2.weight
    plan = make_plan(model, None, PCNConfig(rank=1, layers={"[bnpltc]*": LayerRule(rank=1)}))
    assert {**plan.left_alone, **{n: layer.reason for n, layer in plan.layers.items()}}[name] is not None
    with pytest.raises(ConfigError, match=f"'{name}' .* must be left alone"):
        make_plan(model, None, PCNConfig(rank=1, layers={name: LayerRule(rank=1)}))


def test_without_statistics_rules_about_variance_are_refused() -> None:
    with pytest.raises(ConfigError, match="a threshold on variance needs statistics"):
        make_plan(Mlp(), None, PCNConfig(rank=Threshold(0.1)))
    with pytest.raises(ConfigError, match="a share of variance needs statistics; without them give a rank"):
        make_plan(Mlp(), None)


def test_without_statistics_the_first_outputs_stay() -> None:
    plan = make_plan(Mlp(), None, keeping(fc1=10), example=vectors(2))
    assert plan.kept("fc1.weight", 0) == plan.kept("fc2.weight", 1) == tuple(range(10))


def test_statistics_of_another_model_are_refused() -> None:
    stats = analyze(Mlp(30), [vectors()])
    with pytest.raises(PlanError, match=r"of 'fc2' are of 30 inputs .* but the layer has 24 .*; analyze this model"):
        make_plan(Mlp(), stats, PCNConfig(rank=2))


def test_a_model_that_is_one_layer_is_refused() -> None:
    layer = nn.Linear(WIDTH, 8)
    plan = make_plan(layer, None, PCNConfig(rank=2))
    assert plan.layers[""].reason == "the model is this one layer: it has no parent to swap it in"
    assert not plan.transformed
    with pytest.raises(PCNError, match="the model is this one layer"):
        analyze(layer, [vectors()])


def test_a_model_is_transformed_once() -> None:
    model, x = Mlp(), vectors()
    stats = analyze(model, [x])
    plan = make_plan(model, stats, PCNConfig(rank=2)).apply_(model, stats)
    with pytest.raises(PlanError, match=r"transformed already; pcn.fold_\(model\) brings its plain layers back"):
        make_plan(model, stats, PCNConfig(rank=2))
    with pytest.raises(PlanError, match="transformed already"):
        plan.apply_(model, stats)


def test_a_graph_that_cannot_be_traced_stops_only_the_dropping_of_outputs() -> None:
    model, x = Branching(), vectors()
    stats = analyze(model, [x])
    plan = make_plan(model, stats, everything(rank=0.25, keep_outputs=0.5))
    assert "torch.export cannot follow Branching" in plan.layers["body.fc1"].output_reason
    assert plan.layers["body.fc2"].kept_inputs == 24
    with pytest.raises(TraceError, match=r"'body.fc1' is asked to keep 8 outputs, but torch.export cannot follow"):
        make_plan(model, stats, PCNConfig(layers={"body.fc1": LayerRule(keep_outputs=8)}))
    make_plan(model, stats, PCNConfig(rank=0.25)).apply_(model, stats)
    assert (model.body.fc2.rank, model(x).shape) == (6, (200, 5))


def test_dropping_needs_to_know_how_the_model_is_called() -> None:
    with pytest.raises(TraceError, match="give example= to trace it"):
        make_plan(Mlp(), None, keeping(fc1=8))
    graph = trace(Mlp(), Example.of(vectors(2)))
    with pytest.raises(TraceError, match="give example= to trace it"):
        make_plan(Mlp(), None, keeping(fc1=8), graph=graph)


def test_sizes_in_the_code_keep_channels_with_the_reason() -> None:
    model, x = HardCoded(), vectors()
    plan = make_plan(model, analyze(model, [x]), everything(rank=0.5, keep_outputs=0.5))
    assert "its size is written into the model's code" in plan.layers["fc1"].output_reason
    assert plan.layers["fc2"].kept_outputs == 8
    with pytest.raises(ConfigError, match=r"'fc1' is asked to keep 8 outputs, .* written into the model's code"):
        make_plan(model, analyze(model, [x]), keeping(fc1=8))


def test_a_reader_of_dropped_outputs_needs_a_rank() -> None:
    """The paper's "i in O needs i + 1 in I"."""
    model, x = Mlp(), vectors()
    rules = {"fc1": LayerRule(keep_outputs=8), "fc3": LayerRule(rank=2)}
    stats = analyze(model, [x])
    with pytest.raises(ConfigError, match=r"'fc1' .* 'fc2' reads it and is not transformed .*; give 'fc2' a rank"):
        make_plan(model, stats, PCNConfig(rank=None, layers=rules))
    plan = make_plan(model, stats, PCNConfig(rank=None, keep_outputs=0.5))
    assert "'fc2' reads it and is not transformed (no rank asked for)" in plan.layers["fc1"].output_reason
    with pytest.raises(ConfigError, match=r"'fc2' reads it and is not transformed \(excluded by 'fc2'\)"):
        make_plan(model, stats, PCNConfig(rank=2, layers=rules, exclude=["fc2"]))
    with pytest.raises(ConfigError, match=r"'fc2' reads it .* would not make it smaller.*skip_larger=False"):
        make_plan(model, stats, PCNConfig(rank=1.0, layers=rules))


def test_what_the_model_puts_out_stays() -> None:
    model, x = Mlp(), vectors()
    stats = analyze(model, [x])
    assert make_plan(model, stats, keeping(fc3=5)).layers["fc3"].kept_outputs == 5
    with pytest.raises(ConfigError, match=r"'fc3' .* visible in the model's output"):
        make_plan(model, stats, keeping(fc3=4))
    plan = make_plan(model, stats, everything(rank=0.5, keep_outputs=0.5))
    assert "visible in the model's output" in plan.layers["fc3"].output_reason


def test_more_outputs_than_there_are_cannot_be_kept() -> None:
    with pytest.raises(ConfigError, match="'fc1' is asked to keep 25 outputs, but it has only 24"):
        make_plan(Mlp(), None, keeping(fc1=25), example=vectors(2))


def test_coupled_layers_keep_the_same_number() -> None:
    model, x = Residual(), vectors()
    stats = analyze(model, [x])
    with pytest.raises(CouplingError, match=r"'stem' and 'block' .* to keep 8 and 10 outputs; give them the same"):
        make_plan(model, stats, keeping(stem=8, block=10))
    plan = make_plan(model, stats, keeping(stem=8, block=8))
    assert plan.kept("stem.weight", 0) == plan.kept("block.weight", 0) == plan.kept("head.weight", 1)
    assert make_plan(model, stats, keeping(stem=8)).layers["block"].kept_outputs == 8
    with pytest.raises(CouplingError):
        make_plan(model, stats, keeping(stem=8, block=16))


def test_an_excluded_layer_keeps_its_coupled_outputs() -> None:
    model, x = Residual(), vectors()
    rules = {"stem": LayerRule(rank=2, keep_outputs=8)}
    with pytest.raises(ConfigError, match=r"'stem' .* in 'block', which is excluded by 'block'"):
        make_plan(model, analyze(model, [x]), everything(rank=2, layers=rules, exclude=["block"]))


def test_the_channels_with_the_largest_rows_in_the_readers_bases_stay() -> None:
    model, x = Residual(), vectors()
    stats = analyze(model, [x])
    plan = make_plan(model, stats, keeping(stem=6, inner=7))
    rows = [stats.basis(name, plan.layers[name].rank).abs().sum(1) for name in ("inner", "head")]
    expected = ((rows[0] + rows[1]) / 2).topk(6).indices.sort().values
    assert plan.kept("stem.weight", 0) == tuple(expected.tolist())
    rows = stats.basis("block", plan.layers["block"].rank).abs().sum(1)
    assert plan.kept("inner.weight", 0) == tuple(rows.topk(7).indices.sort().values.tolist())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 2.0])
def test_a_threshold_on_the_norm_is_strict_and_leaves_one(share: float) -> None:
    model, x = Mlp(), vectors()
    stats = analyze(model, [x])
    scores = stats.basis("fc2", 12).abs().sum(1)
    norm = float(scores.sort().values[int(share * 23)]) if share <= 1 else 1e9
    plan = make_plan(model, stats, keeping(fc1=L1Threshold(norm)))
    assert plan.layers["fc1"].kept_outputs == max(1, int((scores > norm).sum()))


def test_scores_of_a_flattened_filter_are_added() -> None:
    model, x = conv_net(), images()
    stats = analyze(model, [x])
    plan = make_plan(model, stats, keeping(conv3=4))
    rows = stats.basis("fc1", plan.layers["fc1"].rank).abs().sum(1).view(8, 4).sum(1)
    pairs = rows.view(2, 4).mean(0).topk(2).indices  # both groups of the convolution keep the same
    expected = sorted([*pairs.tolist(), *(pairs + 4).tolist()])
    assert plan.kept("conv3.weight", 0) == tuple(expected)
    assert plan.layers["fc1"].kept_inputs == 16


def test_a_rank_above_the_inputs_left_is_legal_and_noted() -> None:
    model, x = Mlp(), vectors()
    rules = {"fc1": LayerRule(keep_outputs=4), "fc2": LayerRule(rank=8)}
    stats = analyze(model, [x])
    plan = make_plan(model, stats, everything(rank=None, layers=rules))
    assert plan.layers["fc2"].note == "rank 8 for the 4 inputs kept: a plain layer would be smaller"
    plan.apply_(model, stats)
    assert model.fc2.basis.shape == (4, 8)
    plan = make_plan(Mlp(), stats, everything(rank=None, layers=rules, order="kept_block"))
    assert plan.layers["fc2"].rank == 4


@pytest.mark.parametrize("config", [keeping(fc1=8), everything(rank=0.5, keep_outputs=0.5), PCNConfig(rank=2)])
def test_planning_changes_nothing(config: PCNConfig) -> None:
    model, x = Mlp(), vectors()
    model.fc2.eval()
    stats = analyze(model, [x])
    before, random = record(model), torch.get_rng_state()
    make_plan(model, stats, config)
    assert record(model) == before
    assert torch.equal(torch.get_rng_state(), random)


def test_wrapped_models_are_planned_under_their_own_names() -> None:
    model = Mlp()
    plan = make_plan(model, None, PCNConfig(rank=2))
    assert make_plan(nn.DataParallel(model), None, PCNConfig(rank=2)) == plan
    assert make_plan(torch.compile(model), None, PCNConfig(rank=2)) == plan


def test_a_layer_that_alone_was_compiled_is_left_alone() -> None:
    model = Mlp()
    model.fc2 = torch.compile(model.fc2, backend="eager")
    plan = make_plan(model, None, PCNConfig(rank=2))
    assert plan.layers["fc2._orig_mod"].reason == "torch.compile was given this one layer and holds on to it"


def test_a_layer_with_a_forward_of_its_own_is_left_alone() -> None:
    model = Mlp()
    model.fc2.forward = lambda x: x
    assert make_plan(model, None, PCNConfig(rank=2)).layers["fc2"].reason == "its forward function was replaced"


def test_the_papers_conv4_on_an_empty_model() -> None:
    with torch.device("meta"):
        model = conv4()
    plan = make_plan(model, None, keeping(conv1=40, conv2=50), example=torch.ones(1, 3, 32, 32))
    assert plan.layers["conv3"].kept_inputs == 50


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.last = (
            nn.Linear(*n) for n in ((20, 64), (64, 64), (64, 64), (64, 5))
        )
        self.third.weight = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.third(self.second(self.first(x)).tanh()).tanh())


def test_a_weight_that_two_layers_share_counts_once_and_runs_twice() -> None:
    model, x = Tied(), torch.randn(40, 20)
    plan = make_plan(model, analyze(model, [x]), PCNConfig(rank=4, skip_larger=False, exclude=("last",)))
    assert plan.trainable_before == sum(parameter.numel() for parameter in model.parameters())
    assert sum(layer.flops_before or 0 for layer in plan.layers.values()) == flops_per_sample(model, x)
    assert [name for name, layer in plan.layers.items() if layer.tied] == ["third"]
    assert Plan.from_json(plan.to_json()) == plan
    plan.apply_(model, analyze(model, [x]))
    assert plan.trainable_after == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert sum(layer.flops_after or 0 for layer in plan.layers.values()) == flops_per_sample(model, x)


def test_a_layer_that_reads_some_inputs_has_no_more_directions_than_these() -> None:
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5))
    config = PCNConfig(rank=4, keep_outputs=0.5, order="kept_block", skip_larger=False)
    plan = make_plan(model, analyze(model, [torch.randn(256, 20)]), config)
    with pytest.raises(PlanError, match="cannot have rank 60: give a whole number from 1 to 32, or None"):
        plan.with_rank("2", 60)


class Cache:
    """What a decoder remembers, in a type that torch.export does not know."""

    def __init__(self, seen: Tensor) -> None:
        self.seen = seen


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Cache]:
        seen = self.second(self.first(x).relu())
        return self.third(seen.relu()), Cache(seen)


def test_objects_among_the_outputs_do_not_stand_in_the_way_of_tracing() -> None:
    model, x = Decoder(), torch.randn(40, 6)
    plan = make_plan(model, analyze(model, [x]), PCNConfig(rank=0.5, keep_outputs=0.5, skip_larger=False))
    assert plan.layers["first"].kept_outputs == 4
    assert plan.layers["second"].kept_outputs == 8  # which the cache hands out


@pytest.mark.parametrize("value", [0.0, 1.0, 300.0])
def test_an_input_that_is_always_the_same_is_named(value: float) -> None:
    model = Mlp()
    stats = analyze(model, [torch.full((64, 12), value)])
    plan = make_plan(model, stats, PCNConfig(rank=4, skip_larger=False))
    assert all("look at other batches" in (layer.note or "") for layer in plan.transformed)
    varied = analyze(model, [value + torch.randn(64, 12)])
    plan = make_plan(model, varied, PCNConfig(rank=4, skip_larger=False))
    assert not any("look at other batches" in (layer.note or "") for layer in plan.transformed)
