"""A compiled model that switches runs its new layers: no stale graph, and the same gradients as the plain model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import pcn
from switching.loop import CLASSES, CONFIG, Batch, convolutional, dense, gradients, images, step, vectors

Run = Callable[[Tensor], Tensor]


class Whole(nn.Module):
    """A module with code of its own: torch compiles nothing when a bare ``nn.Sequential`` is compiled in place."""

    def __init__(self, body: nn.Sequential) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


KINDS: dict[str, tuple[Callable[[], nn.Sequential], Callable[[int], Batch]]] = {
    "dense": (dense, vectors),
    "convolutional": (convolutional, images),
}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def wrapped(model: nn.Module, backend: str) -> tuple[nn.Module, Run]:
    """``torch.compile(model)``; the wrapper is given to the switch."""
    compiled = torch.compile(model, backend=backend)
    return compiled, compiled


def beside(model: nn.Module, backend: str) -> tuple[nn.Module, Run]:
    """``torch.compile(model)``; the model itself is given to the switch, and the wrapper trained."""
    return model, torch.compile(model, backend=backend)


def in_place(model: nn.Module, backend: str) -> tuple[nn.Module, Run]:
    """``model.compile()``."""
    model.compile(backend=backend)
    return model, model


def whole_step(model: nn.Module, backend: str) -> tuple[nn.Module, Run]:
    """A compiled function that calls the model, as in a compiled training step."""
    return model, torch.compile(lambda x: model(x) * 1.0, backend=backend)


STYLES = [wrapped, beside, in_place, whole_step]


def assert_switches(style: Callable[..., tuple[nn.Module, Run]], kind: str, backend: str) -> None:
    make, data = KINDS[kind]
    model = Whole(make())
    given, run = style(model, backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    switch = pcn.Switch(given, optimizer, CONFIG, at=pcn.AfterStep(2))
    x = data(7)[0]
    for done in (1, 2):
        step(run, optimizer, data(done))
        old = run(x).detach()
        plan = switch.after_step(done, [data(9)[0]])
    assert plan is not None
    for mode in (True, False):
        model.train(mode)
        found, expected = gradients(model, run, data(3)), gradients(model, eager(model), data(3))
        assert found.keys() == expected.keys() == dict(model.named_parameters()).keys()
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(run(x), eager(model)(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(run(x), old, atol=1e-3)
    model.train()
    before = [p.detach().clone() for p in model.parameters()]
    step(run, optimizer, data(4))
    assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True) if p.ndim > 1)


def eager(model: nn.Module) -> Run:
    def run(x: Tensor) -> Tensor:
        with torch.compiler.set_stance("force_eager"):
            return model(x)

    return run


@pytest.mark.parametrize(("kind", "backend"), [("dense", "eager"), ("convolutional", "aot_eager")])
@pytest.mark.parametrize("style", STYLES)
def test_a_compiled_model_runs_its_new_layers(
    style: Callable[..., tuple[nn.Module, Run]], kind: str, backend: str
) -> None:
    assert_switches(style, kind, backend)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_inductor_too(kind: str) -> None:
    assert_switches(wrapped, kind, "inductor")


class Blocks(nn.Module):
    """Compiled block by block, as large models are."""

    def __init__(self) -> None:
        super().__init__()
        widths = (10, 16, 16)
        self.blocks = nn.ModuleList(Whole(nn.Sequential(nn.Linear(m, n), nn.ReLU())) for m, n in pairwise(widths))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's, of any such block
@pytest.mark.parametrize("style", ["in place", "wrapped"])
def test_blocks_that_were_compiled_on_their_own(style: str) -> None:
    model = Blocks()
    for number, block in enumerate(model.blocks):
        if style == "in place":
            block.compile(backend="aot_eager")
        else:
            model.blocks[number] = torch.compile(block, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, optimizer, vectors(0))
    plan = pcn.Switch(model, optimizer, CONFIG).now([vectors(9)[0]])
    assert len(plan.transformed) == 3
    found, expected = gradients(model, model, vectors(1)), gradients(model, eager(model), vectors(1))
    assert found.keys() == expected.keys() == dict(model.named_parameters()).keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])
    step(model, optimizer, vectors(2))


def test_a_compiled_optimizer_step_takes_the_new_parameters() -> None:
    model = dense()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    compiled = torch.compile(optimizer.step, backend="aot_eager")

    def compiled_step(batch: Batch) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        compiled()

    for seed in range(2):
        compiled_step(vectors(seed))
    pcn.Switch(model, optimizer, CONFIG).now([vectors(9)[0]])
    before = [p.detach().clone() for p in model.parameters()]
    compiled_step(vectors(2))
    assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
