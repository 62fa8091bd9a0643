"""The stage that the paper draws: layers 0, 2, 4 and 6 keep the same channels, chosen by U3, U5 and U7."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pcn
from graph.coupling import together
from pcn import LayerRule, PCNConfig
from pcn.graph import trace
from pcn.running.example import Example

WIDTH = 8
STREAM = (0, 2, 4, 6)


class Stage(nn.Module):
    """Three blocks and the first block of the next stage, numbered as in the paper's figure.

    Layer 0 projects the shortcut and shares its input with layer 1, layer 8 with layer 7.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ModuleList(
            nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
            for inputs, outputs, kernel, stride in [
                (3, WIDTH, 1, 1),
                (3, WIDTH, 3, 1),
                *[(WIDTH, WIDTH, 3, 1)] * 5,
                (WIDTH, 12, 3, 2),
                (WIDTH, 12, 1, 2),
                (12, 12, 3, 1),
            ]
        )
        self.norm = nn.ModuleList(nn.BatchNorm2d(conv.out_channels) for conv in self.conv)
        self.head = nn.Linear(12, 3)

    def layer(self, number: int, x: Tensor) -> Tensor:
        return self.norm[number](self.conv[number](x))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.layer(0, x) + self.layer(2, torch.relu(self.layer(1, x))))
        x = torch.relu(x + self.layer(4, torch.relu(self.layer(3, x))))
        x = torch.relu(x + self.layer(6, torch.relu(self.layer(5, x))))
        x = torch.relu(self.layer(8, x) + self.layer(9, torch.relu(self.layer(7, x))))
        return self.head(x.mean((2, 3)))


@pytest.fixture
def stage() -> Stage:
    model = Stage().double().eval()
    for norm in model.norm:
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
        nn.init.normal_(norm.bias)
    return model


@pytest.fixture
def stats(stage: Stage) -> pcn.Statistics:
    return pcn.analyze(stage, [torch.randn(6, 3, 8, 8, dtype=torch.float64)])


def test_what_meets_in_the_sums_goes_together(stage: Stage) -> None:
    graph = trace(stage, Example.of(torch.randn(6, 3, 8, 8, dtype=torch.float64)))
    outputs = [(f"conv.{n}.weight", 0) for n in STREAM]
    norms = [(f"norm.{n}.{name}", 0) for n in STREAM for name in ("weight", "bias", "running_mean", "running_var")]
    readers = [(f"conv.{n}.weight", 1) for n in (3, 5, 7, 8)]
    assert together(graph, *outputs, *norms, *readers)
    stream = set(graph.tensors["conv.0.weight"][0].tolist())
    for n in (1, 3, 5):
        assert together(graph, (f"conv.{n}.weight", 0), (f"conv.{n + 1}.weight", 1))
        assert not stream & set(graph.tensors[f"conv.{n}.weight"][0].tolist())


def test_readers_of_one_input_are_measured_once(stage: Stage, stats: pcn.Statistics) -> None:
    assert stats.layers["conv.1"] == stats.layers["conv.0"] == "conv.0"
    assert stats.layers["conv.8"] == stats.layers["conv.7"]


@pytest.mark.parametrize("ranks", [(3, 3, 3), (2, 5, 4)])
def test_the_score_is_the_mean_over_the_distinct_activations(
    stage: Stage, stats: pcn.Statistics, ranks: tuple[int, int, int]
) -> None:
    rules = {f"conv.{n}": LayerRule(rank=rank) for n, rank in zip((3, 5, 7), ranks, strict=True)}
    rules["conv.8"] = LayerRule(rank=ranks[2])
    rules["conv.0"] = LayerRule(rank=2, keep_outputs=5)
    plan = pcn.make_plan(stage, stats, PCNConfig(rank=1.0, layers=rules, skip_larger=False))
    norms = [stats.basis(f"conv.{n}", rank).abs().sum(1) for n, rank in zip((3, 5, 7), ranks, strict=True)]
    best = torch.stack(norms).mean(0).topk(5).indices.sort().values.tolist()
    for n in STREAM:
        assert list(plan.kept(f"conv.{n}.weight", 0) or ()) == best
        assert list(plan.kept(f"norm.{n}.running_var", 0) or ()) == best
    for n in (3, 5, 7, 8):
        assert list(plan.kept(f"conv.{n}.weight", 1) or ()) == best


def test_asking_for_different_numbers_is_refused(stage: Stage, stats: pcn.Statistics) -> None:
    rules = {"conv.2": LayerRule(rank=2, keep_outputs=5), "conv.6": LayerRule(rank=2, keep_outputs=4)}
    with pytest.raises(pcn.CouplingError) as error:
        pcn.make_plan(stage, stats, PCNConfig(rank=1.0, layers=rules, skip_larger=False))
    assert str(error.value) == (
        "'conv.2' and 'conv.6' share channels (they meet in a sum or the like) but are asked to keep 5 and 4 outputs; "
        "give them the same keep_outputs"
    )


def test_a_reader_of_the_sum_without_a_rank_keeps_all_channels(stage: Stage, stats: pcn.Statistics) -> None:
    config = PCNConfig(rank=1.0, keep_outputs=0.5, exclude=("conv.8",), skip_larger=False)
    plan = pcn.make_plan(stage, stats, config)
    for n in STREAM:
        assert plan.layers[f"conv.{n}"].kept_outputs == WIDTH
        assert "'conv.8' reads it and is not transformed (excluded by 'conv.8')" in str(
            plan.layers[f"conv.{n}"].output_reason
        )
    assert plan.layers["conv.3"].kept_outputs == WIDTH // 2
    rules = {"conv.0": LayerRule(rank=1, keep_outputs=4), "conv.8": LayerRule()}
    with pytest.raises(pcn.ConfigError, match=r"none can be dropped: 'conv\.8' reads it .* give 'conv\.8' a rank"):
        pcn.make_plan(stage, stats, PCNConfig(rank=1.0, layers=rules, skip_larger=False))
