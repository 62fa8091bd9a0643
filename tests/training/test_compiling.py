"""Compiling block by block: fewer graphs, the same numbers, and a model that is as before outside of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import pcn
from pcn import models
from pcn.training.compiling import blocks, compile_parts, running
from pcn.training.step import Step

# torch's own, of any block that is compiled by itself
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.linear(x)))


class Stage(nn.Module):
    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(m, n) for m, n in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Network(nn.Module):
    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.body, self.head = Stage(*widths), nn.Linear(widths[-1], 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Counting:
    """A backend that runs graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward


def gradients(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(batch).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def transformed(*widths: int) -> Network:
    torch.manual_seed(0)
    model = Network(*widths)
    pcn.compress_(model, [torch.randn(16, widths[0])], pcn.PCNConfig(rank=3, skip_larger=False))
    return model


def test_blocks_are_the_outermost_classes_with_two_alike() -> None:
    stages = nn.Sequential(Stage(6, 6, 6), Stage(6, 8, 8, 8))
    assert blocks(stages) == [*stages[0].blocks, *stages[1].blocks]  # the stages themselves are not alike
    alike = nn.Sequential(Stage(6, 8, 6), Stage(6, 8, 6))
    assert blocks(alike) == [*alike]


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(Block(4, 5), Block(5, 6), Block(6, 7)),  # none alike
        nn.Sequential(Block(4, 4), Block(4, 4), *(nn.Linear(4, 4) for _ in range(5))),  # most of it stands outside
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
    ],
)
def test_without_alike_blocks_it_is_the_whole_model(model: nn.Module) -> None:
    assert blocks(model) == []
    backend = Counting()
    forwards = compile_parts(model, backend=backend)
    assert list(forwards) == [model]
    with running(forwards):
        found = model(torch.randn(8, 4))
    assert found.shape[0] == 8
    assert backend.graphs == 1


def test_alike_blocks_share_one_graph_after_the_switch_too() -> None:
    model, backend = models.resnet20(width=8), Counting()
    pcn.compress_(model, [torch.randn(64, 3, 8, 8)], pcn.PCNConfig(rank=0.25))
    with running(compile_parts(model, backend=backend)):
        model(torch.randn(4, 3, 8, 8))
    assert len(blocks(model)) == 9
    assert backend.graphs == 6  # the first block of each of the three stages, and the others


@pytest.mark.parametrize("whole", [False, True])
def test_gradients_are_those_of_the_plain_model(whole: bool) -> None:
    model, batch = transformed(4, 6, 6, 6), torch.randn(8, 4)
    expected = gradients(model, batch)
    with running(compile_parts(model, whole=whole, backend="aot_eager")):
        found = gradients(model, batch)
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-5)


def test_any_number_of_kinds_of_block() -> None:
    backend = Counting()
    model = Network(*range(3, 16), 15, 15)  # 13 kinds; the compiler by itself gives up after 8
    with running(compile_parts(model, backend=backend)):
        model(torch.randn(4, 3))
    assert len(blocks(model)) == 14
    assert backend.graphs == 13


def test_outside_the_model_runs_as_before() -> None:
    model, backend = Network(4, 4, 4), Counting()
    own = model.body.blocks[0].forward = lambda x: Block.forward(model.body.blocks[0], x)
    forwards = compile_parts(model, backend=backend)

    def interrupted() -> None:
        with running(forwards):
            model(torch.randn(4, 4))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert backend.graphs
    assert model.body.blocks[0].forward is own
    assert "forward" not in model.body.blocks[1].__dict__
    before = backend.graphs
    model.eval()(torch.randn(4, 4))
    assert backend.graphs == before


def test_checkpointed_blocks_are_computed_again_as_they_were() -> None:
    class Checkpointed(Network):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.body.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    model, batch = Checkpointed(4, 4, 4), torch.randn(4, 4)
    expected = gradients(model, batch)
    with running(compile_parts(model, backend="aot_eager")):
        found = gradients(model, batch)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])


def test_a_compiled_step_trains_as_a_plain_one() -> None:
    trained = []
    for compiled in (False, True):
        model = transformed(4, 4, 4)
        batch, labels = torch.randn(16, 4), torch.randint(3, (16,))
        step = Step(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), batch, labels, compiled=compiled)
        for _ in range(3):
            step(batch, labels)
        trained.append(dict(model.named_parameters()))
    for name, parameter in trained[0].items():
        torch.testing.assert_close(trained[1][name], parameter, rtol=1e-3, atol=1e-5)


def test_graphs_are_found_again_on_disk(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = transformed(4, 4, 4)  # its layers leave autocast for their sums
    hits = []
    for _ in range(2):
        counters.clear()
        with running(compile_parts(model)), torch.autocast("cpu", torch.bfloat16):
            model(torch.randn(16, 4)).float().square().mean().backward()
        hits.append(counters["aot_autograd"]["autograd_cache_hit"])
    assert hits == [0, 2]  # two graphs: the first block gets an input without gradients
