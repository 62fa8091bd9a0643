"""Whatever a model's own code does with a fused value, it is the tensor that the unfused model would have there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import pcn
from fusion.test_fuse import assert_same
from pcn.fusion import Fusion, choose_forms, fuse_
from pcn.fusion.pending import Pending
from pcn.nn import PCConv2d

SHAPE = (4, 3, 6, 6)
Use = Callable[["Block", Tensor], Any]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


class Guided(torch.autograd.Function):
    """A ReLU that lets other gradients through: its graph shows a ReLU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.relu()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].relu()


class Block(nn.Module):
    """A convolution, batch norm and ReLU, and somebody's own code with ``last`` behind them."""

    def __init__(self, use: Use, last: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.relu, self.same = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Identity()
        self.last, self.use = last, use

    def forward(self, x: Tensor) -> Any:
        return self.use(self, self.same(self.relu(self.norm(self.conv(x)))))


def layers() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"stock": nn.Conv2d(4, 4, 1), "principal components": PCConv2d(4, 4, 1, rank=2)}


def block(use: Use = lambda m, h: m.last(h), kind: str = "principal components") -> tuple[Block, Block, Tensor, Fusion]:
    """A fused block, its twin, a batch, and what fusion did."""
    model = Block(use, layers()[kind]).double()
    twin, batch = copy.deepcopy(model), torch.randn(SHAPE, dtype=torch.float64)
    return model, twin, batch, fuse_(model, batch)


USES: dict[str, Use] = {
    "equal": lambda m, h: m.last(h) * (h == 0),
    "unequal": lambda m, h: m.last(h) * (h != 0),
    "isinstance": lambda m, h: m.last(h) if isinstance(h, Tensor) else m.last(h) * 0,
    "output": lambda m, h: h,
    "one of the outputs": lambda m, h: {"h": h, "y": m.last(h)}["h"],
    "checkpoint": lambda m, h: checkpoint(m.last, h, use_reentrant=False),
    "reentrant checkpoint": lambda m, h: checkpoint(m.last, h, use_reentrant=True),
    "checkpoint for gradients": lambda m, h: (
        checkpoint(m.last, h, use_reentrant=False) if h.requires_grad else m.last(h)
    ),
    "function": lambda m, h: m.last(h) + Doubled.apply(h),
    "function alone": lambda m, h: Doubled.apply(h),
    "guided": lambda m, h: m.last(Guided.apply(m.norm(h))),
    "detached": lambda m, h: m.last(h) + h.detach(),
    "in a list": lambda m, h: m.last(torch.stack([h, h]).sum(0)),
    "condition": lambda m, h: torch.where(h > 0.5, h, m.last(h)),
    "hashed": lambda m, h: {h: m.last(h)}[h],
    "by keyword": lambda m, h: m.last(input=h),
    "in place": lambda m, h: m.last(h.clone().add_(1)),
    "only in training": lambda m, h: m.last(h) + h.square() if m.training else m.last(h),
    "only at inference": lambda m, h: m.last(h) if m.training else m.last(h) + Tensor.exp(h),
}


@pytest.mark.parametrize("kind", layers())
@pytest.mark.parametrize("use", USES)
def test_own_code_computes_the_same(use: str, kind: str) -> None:
    model, twin, batch, _ = block(USES[use], kind)
    for training in (True, False):
        assert_same(model.train(training), twin.train(training), batch)


@pytest.mark.parametrize(
    "use", ["checkpoint", "reentrant checkpoint", "checkpoint for gradients", "function", "function alone"]
)
def test_code_that_wants_tensors_is_left_alone_with_a_reason(use: str) -> None:
    *_, found = block(USES[use])
    assert not found.chains
    assert "wants tensors" in found.left_alone["norm"]


@pytest.mark.parametrize("use", ["only in training", "only at inference"])
def test_what_only_one_mode_shows_counts(use: str) -> None:
    *_, found = block(USES[use])
    (chain,) = found.chains
    assert chain.relu
    assert not chain.readers


def test_a_norm_of_one_mode_is_left_alone() -> None:
    class Auxiliary(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self[1](self[0](x))) if self.training else self[0](x)

    model = Auxiliary(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    found = fuse_(model, torch.randn(SHAPE))
    assert found.left_alone == {"1": "it is not called in training and at inference alike"}


def test_training_that_cannot_be_captured_is_left_alone() -> None:
    def use(m: Block, h: Tensor) -> Tensor:
        return m.last(h) * (2 if m.training and float(h.detach().sum()) > 0 else 1)

    model, twin, batch, found = block(use)
    assert "its training cannot be captured" in found.left_alone["norm"]
    assert_same(model, twin, batch)


def test_only_layers_of_ours_are_given_what_is_not_computed() -> None:
    seen: list[type] = []

    def use(m: Block, h: Tensor) -> Tensor:
        seen.append(type(h))
        return m.last(h)

    for kind, expected in (("stock", Tensor), ("principal components", Pending)):
        model, _, batch, found = block(use, kind)
        seen.clear()
        model(batch)
        assert seen == [expected]
        assert found.chains[0].readers == (("last",) if expected is Pending else ())


def test_outputs_are_computed_when_the_model_is_called() -> None:
    model, twin, batch, _ = block(USES["output"])
    late, expected = model(batch), twin(batch)
    for network in (model, twin):
        with torch.no_grad():
            network.norm.weight.mul_(10)
    torch.testing.assert_close(late, expected)
    late, expected = model(batch), twin(batch)
    for network in (model, twin):
        network.eval()
    (one,), (other,) = (
        torch.autograd.grad(y.square().sum(), network.conv.weight) for y, network in ((late, model), (expected, twin))
    )
    torch.testing.assert_close(one, other)
    with torch.no_grad():
        output = model(batch)
    assert not output.requires_grad


def test_a_value_that_is_put_aside_is_right_or_refused() -> None:
    kept: list[Tensor] = []

    def use(m: Block, h: Tensor) -> Tensor:
        kept.append(h)
        return m.last(h)

    model, twin, batch, found = block(use)
    assert found.chains[0].readers
    kept.clear()
    for network in (model, twin, model):
        network(batch)
    torch.testing.assert_close(kept[0] * 1, kept[1])
    with torch.no_grad():
        model.norm.weight.mul_(2)
    with pytest.raises(pcn.PCNError, match="read it earlier"):
        kept[2].sum()


def test_gradients_are_switched_off_for_a_part() -> None:
    class Frozen(Block):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                y = self.norm(self.conv(x))
            return self.last(self.relu(y + x[:, :1, 1:-1, 1:-1].expand_as(y)))

    model = Frozen(lambda m, h: h, layers()["principal components"]).double()
    twin, batch = copy.deepcopy(model), torch.randn(SHAPE, dtype=torch.float64)
    fuse_(model, batch)
    assert_same(model, twin, batch)


@pytest.mark.parametrize("place", ["norm", "relu", "same", "last", "everywhere"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_are_given_tensors(place: str, when: str) -> None:
    model = Block(lambda m, h: m.last(h), layers()["principal components"])
    batch, seen, handles = torch.randn(SHAPE), [], []

    def look(module: nn.Module, arguments: Any, output: Any = None) -> None:
        seen.extend(type(value) for value in (*arguments, output) if value is not None)

    def add() -> None:
        owner: Any = nn.modules.module if place == "everywhere" else getattr(model, place)
        names = ("register_forward_hook", "register_forward_pre_hook")
        prefix = ("register_module_forward_hook", "register_module_forward_pre_hook")
        handles.extend(getattr(owner, name)(look) for name in (prefix if place == "everywhere" else names))

    try:
        if when == "before":
            add()
        fuse_(model, batch)
        if when == "after":
            add()
        seen.clear()
        model(batch)
        assert seen
        assert set(seen) == {Tensor}
    finally:
        for handle in handles:
            handle.remove()


def test_a_backward_hook_on_a_norm_fires() -> None:
    model, _, batch, _ = block()
    fired: list[int] = []
    model.norm.register_full_backward_hook(lambda *_: fired.append(1))
    model(batch).sum().backward()
    assert fired


class Watched(nn.Module):
    """In training somebody reads a layer's output before its batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = PCConv2d(3, 6, 3, rank=2), nn.BatchNorm2d(6), nn.Linear(6, 2)
        nn.init.constant_(self.conv.bias, 5.0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        y = self.fc(F.relu(self.norm(h)).mean((2, 3)))
        return torch.cat([y, h.mean((2, 3))], 1) if self.training else y


@pytest.mark.parametrize("form", ["fused", "factored", "folded"])
def test_a_layer_keeps_its_bias_for_every_reader(form: Any) -> None:
    model = Watched().double()
    twin, batch = copy.deepcopy(model), torch.randn(SHAPE, dtype=torch.float64)
    fuse_(model, batch, forms=form)
    for training in (True, False):
        assert_same(model.train(training), twin.train(training), batch)
    means: list[float] = []
    for network in (model.train(), twin.train()):
        network.conv.register_forward_hook(lambda module, inputs, output: means.append(float(output.detach().mean())))
        network(batch)
    assert means[0] == pytest.approx(means[1])


def test_what_a_waiting_value_is_made_of_may_be_written_to() -> None:
    class Writing(Block):
        def forward(self, x: Tensor) -> Tensor:
            z = self.conv(x)
            h = self.relu(self.norm(z))
            z.add_(1)
            return self.last(h) + z

    model = Writing(lambda m, h: h, layers()["principal components"]).double().eval()
    twin, batch = copy.deepcopy(model), torch.randn(SHAPE, dtype=torch.float64)
    assert not fuse_(model, batch).chains[0].readers
    with torch.no_grad():
        torch.testing.assert_close(model(batch), twin(batch))


def test_layers_that_are_called_by_keyword_have_a_form() -> None:
    model = Block(USES["by keyword"], layers()["principal components"])
    assert choose_forms(model, torch.randn(SHAPE)).keys() == {"last"}
