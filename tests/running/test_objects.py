"""Batches and outputs that are objects of one's own; models and functions that change what they are given."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pcn
from pcn.running.example import Example
from pcn.running.trees import fresh_copy, tensors_in


class Graph:
    """A batch that no pytree knows; it knows the batch before it, which knows it."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.name, self.other = x, "a graph", self


@dataclass
class Output:
    logits: Tensor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(20, 64), nn.Linear(64, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Any:
        return self.third(self.second(self.first(x).relu()).relu())


class Dataclass(Net):
    def forward(self, x: Tensor) -> Any:
        return Output(super().forward(x))


class InPlace(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x.sub_(1).mul_(2))


class NotInPlace(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward((x - 1) * 2)


class Force(Net):
    def forward(self, x: Tensor) -> Any:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(super().forward(x).sum(), x, create_graph=True)[0]


def batches() -> list[Tensor]:
    torch.manual_seed(1)
    return [x.clone() for x in (torch.randn(256, 20) * torch.logspace(1, -1, 20)).split(100)]


WISHES = {
    "balanced": pcn.PCNConfig(rank=8, basis="balanced", skip_larger=False),
    "taylor": pcn.Budget(params=0.5, worth=pcn.Taylor(), step=1),
    "divergence": pcn.Budget(params=0.5, worth=pcn.Divergence(), step=1),
    "memory": pcn.Budget(memory_mib=0.9, step=1),
}


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)
def test_a_batch_of_a_type_of_its_own_counts_as_its_tensors(wish: Any) -> None:
    model, other = Net(), Net()
    pcn.compress_(model, batches(), wish)
    pcn.compress_(other, map(Graph, batches()), wish, forward=lambda m, graph: m(graph.x))
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor, msg=name)


def test_how_many_samples_there_are() -> None:
    x, none = torch.ones(7, 2), torch.empty(0, 4)
    assert [Example(each).samples for each in (x, {"extra": none, "x": x}, Graph(x), none, "words")] == [7, 7, 7, 0, 0]
    assert [Example(each).is_empty for each in (x, {"extra": none, "x": x}, none, "words")] == [
        False,
        False,
        True,
        False,
    ]
    assert Example((x, none)).with_samples(3).samples == 3
    with pytest.raises(pcn.ConfigError, match="a batch of type Graph cannot be made one of 3 samples: give tensors"):
        Example(Graph(x)).with_samples(3)


FLOPS, TIMED = pcn.Budget(flops=0.5), pcn.Budget(step_ms=1e6, params=0.5)


@pytest.mark.parametrize(
    ("wish", "kind"),
    [*((wish, kind) for wish in WISHES.values() for kind in (dict, UserDict)), (FLOPS, dict), (TIMED, dict)],
)
def test_a_function_may_take_things_out_of_a_batch(wish: Any, kind: Any) -> None:
    def forward(model: nn.Module, batch: Any) -> Any:
        batch.pop("labels")
        return model(batch["x"])

    given = [kind(x=x, labels=torch.zeros(len(x))) for x in batches()]
    model, other = Net(), Net()
    pcn.compress_(model, batches(), wish)
    pcn.compress_(other, given, wish, forward=forward)
    assert all("labels" in batch for batch in given)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor, msg=name)


@pytest.mark.parametrize("wish", [*WISHES.values(), TIMED], ids=[*WISHES, "time"])
def test_a_model_may_write_into_its_input(wish: Any) -> None:
    given = batches()
    plans = [pcn.compress_(build(), given, wish) for build in (InPlace, NotInPlace)]
    for one, another in zip(given, batches(), strict=True):
        torch.testing.assert_close(one, another)
    if wish not in (WISHES["memory"], TIMED):  # writing in place takes less of the one, and clocks say what they like
        assert [layer.rank for layer in plans[0].layers.values()] == [layer.rank for layer in plans[1].layers.values()]


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)
def test_a_function_may_write_into_an_object(wish: Any) -> None:
    def forward(model: nn.Module, graph: Graph) -> Any:
        graph.x = (graph.x - 1) * 2
        return model(graph.x)

    given = [Graph(x) for x in batches()]
    model, other = NotInPlace(), Net()
    pcn.compress_(model, batches(), wish)
    pcn.compress_(other, given, wish, forward=forward)
    for graph, x in zip(given, batches(), strict=True):
        assert graph.x.equal(x)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor, msg=name)


@pytest.mark.parametrize("thing", [torch.nn.Linear(2, 2), "words", len, object(), iter([torch.ones(1)])])
def test_what_holds_no_tensor_that_could_be_copied_is_passed_on(thing: Any) -> None:
    assert fresh_copy({"thing": thing})["thing"] is thing


@pytest.mark.parametrize("wish", [WISHES["divergence"], WISHES["memory"], FLOPS, TIMED])
def test_a_model_may_put_out_a_dataclass(wish: Any) -> None:
    model, x = Dataclass(), batches()
    assert model(x[0]).logits.shape == (100, 5)
    pcn.compress_(model, x, wish)
    assert pcn.trace(Dataclass(), [x[0], x[0]], forward=lambda m, pair: m(pair[1]).logits).class_count


@pytest.mark.parametrize("wish", [pcn.Budget(params=0.5), WISHES["balanced"]], ids=["params", "balanced"])
def test_a_model_that_takes_gradients_itself_is_called_with_them(wish: Any) -> None:
    said = r"run without gradients: where its own code takes some, give a forward= that calls it inside torch.enable"
    with pytest.raises(pcn.PCNError, match=said):
        pcn.compress_(Force(), batches(), wish)

    def forward(model: nn.Module, batch: Tensor) -> Any:
        with torch.enable_grad():
            return model(batch)

    assert pcn.compress_(Force(), batches(), wish, forward=forward).transformed


def test_copies_share_no_container_and_no_tensor() -> None:
    given = {"a": [torch.ones(2)], "b": UserDict(c=torch.ones(3)), "d": Graph(torch.ones(4))}
    new = fresh_copy(given)
    assert [tensor.shape for tensor in tensors_in(new)] == [(2,), (3,), (4,)]
    new["a"].append(0)
    new["a"][0].zero_()
    new["b"]["c"].zero_()
    del new["b"]["c"]
    new["d"].x.zero_()
    new["d"].x = None
    assert len(given["a"]) == 1
    assert len(tensors_in(given)) == 3
    assert all(tensor.all() for tensor in tensors_in(given))
    assert new["d"].other is new["d"]


def test_objects_that_hold_one_another_are_looked_at_once() -> None:
    crowd = [Graph(torch.ones(1)) for _ in range(30)]
    for each in crowd:
        each.all, each.code, each.function = crowd, torch, torch.ones  # type: ignore[attr-defined]
    assert len(tensors_in(crowd[0])) == 30
