"""Each family of operators on a small module whose couplings are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graph.coupling import Wired, graph_of, together, why
from pcn.graph import trace
from pcn.running.example import Example

FREE = {None}
VISIBLE = {"its channels are visible in the model's output"}
IMAGES = (2, 3, 6, 6)


def pair(between: Callable[[Any, Tensor], Tensor], width: int = 8, reads: int | None = None, **parts: Any) -> Wired:
    """conv a, something in between, conv b."""
    return Wired(
        lambda m, x: m.b(between(m, m.a(x))),
        a=nn.Conv2d(3, width, 3, padding=1),
        b=nn.Conv2d(reads or width, 4, 3, padding=1),
        **parts,
    )


PASSES: dict[str, tuple[Callable[[Any, Tensor], Tensor], dict[str, Any]]] = {
    "nothing": (lambda m, x: x, {}),
    "activations": (lambda m, x: F.gelu(F.relu(x).sigmoid()).tanh() ** 2, {}),
    "in place": (lambda m, x: F.relu_(x).mul_(2).clamp_(0, 6), {}),
    "batch norm": (lambda m, x: m.norm(x), {"norm": nn.BatchNorm2d(8)}),
    "instance norm": (lambda m, x: m.norm(x), {"norm": nn.InstanceNorm2d(8, affine=True)}),
    "prelu": (lambda m, x: m.act(x), {"act": nn.PReLU(8)}),
    "one prelu": (lambda m, x: m.act(x), {"act": nn.PReLU()}),
    "dropout": (lambda m, x: F.dropout2d(F.dropout(x, 0.5, m.training), 0.5, m.training), {}),
    "max pool": (lambda m, x: F.max_pool2d(x, 2), {}),
    "max pool with indices": (lambda m, x: F.max_pool2d(x, 2, return_indices=True)[0], {}),
    "average pools": (lambda m, x: F.adaptive_avg_pool2d(F.avg_pool2d(x, 2), 3), {}),
    "adaptive max pool": (lambda m, x: F.adaptive_max_pool2d(x, 3), {}),
    "upsampling": (lambda m, x: F.interpolate(F.interpolate(x, scale_factor=2.0), size=5, mode="bilinear"), {}),
    "padding": (lambda m, x: F.pad(F.pad(x, (1, 1)), (1, 1, 1, 1), mode="reflect"), {}),
    "layer scale": (lambda m, x: x * m.gamma + m.beta, {"gamma": torch.ones(8, 1, 1), "beta": torch.ones(1, 8, 1, 1)}),
    "its own mean": (lambda m, x: x - x.mean((2, 3), keepdim=True), {}),
    "a mask": (lambda m, x: torch.where(x > 0, x, -x).masked_fill(x > 1, 1.0), {}),
    "over space": (lambda m, x: x.softmax(-1).cumsum(2).flip(3).roll(1, 2), {}),
    "there and back": (lambda m, x: x.movedim(1, -1).flatten(1, 2).mT.reshape(x.shape), {}),
    "a sum of itself": (lambda m, x: torch.add(x, x.abs(), alpha=2), {}),
}


@pytest.mark.parametrize("name", PASSES)
def test_channels_pass(name: str) -> None:
    between, parts = PASSES[name]
    model = pair(between, **parts)
    graph = graph_of(model, *IMAGES)
    assert together(graph, ("a.weight", 0), ("a.bias", 0), ("b.weight", 1))
    assert why(graph, "a.weight") == FREE
    assert why(graph, "b.weight") == VISIBLE
    assert why(graph, "a.weight", 1) == {"its input has a fixed size"}
    for part, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if part.startswith(("norm", "act", "gamma", "beta")) and 8 in tensor.shape:
            assert together(graph, (part, tensor.shape.index(8)), ("a.weight", 0))


REFUSES: dict[str, tuple[Callable[[Any, Tensor], Tensor], dict[str, Any], str]] = {
    "layer norm": (lambda m, x: m.norm(x), {"norm": nn.LayerNorm([8, 6, 6])}, "layer_norm normalises across channels"),
    "group norm": (lambda m, x: m.norm(x), {"norm": nn.GroupNorm(2, 8)}, "group_norm normalises across channels"),
    "bare instance norm": (lambda m, x: m.norm(x), {"norm": nn.InstanceNorm2d(8)}, "keeps its number of features"),
    "softmax": (lambda m, x: x.softmax(1), {}, "aten.softmax works across channels"),
    "mean": (lambda m, x: x - x.mean(1, keepdim=True), {}, "aten.mean reduces across channels"),
    "norm": (lambda m, x: x / x.norm(), {}, "reduces across channels"),
    "flip": (lambda m, x: x.flip(1), {}, "aten.flip works across channels"),
    "one channel": (lambda m, x: x * x[:, 3].unsqueeze(1), {}, "picks single channels by number"),
    "unknown": (lambda m, x: torch.special.i0(x), {}, "no rule for the operator aten.special_i0"),
    "matmul": (lambda m, x: (x.mT @ x).mT @ x, {}, "no rule for the operator aten.matmul"),
    "own loss": (lambda m, x: x - F.cross_entropy(x, torch.zeros_like(x)), {}, "a loss compares it with targets"),
    "constant": (lambda m, x: x + torch.ones(8, 1, 1), {}, "it meets a tensor of fixed size in aten.add"),
    "channel padding": (lambda m, x: F.pad(x, (0, 0, 0, 0, 1, 1)), {}, "adds channels to it"),
    "pools over channels": (lambda m, x: F.max_pool3d(x, (2, 1, 1)), {}, "pools across channels"),
    "convolves over channels": (
        lambda m, x: m.mix(x.flatten(2).mT).mT.reshape(x.shape),
        {"mix": nn.Conv1d(36, 36, 3, padding=1)},
        "aten.conv1d takes it for positions",
    ),
    "strides over channels": (
        lambda m, x: m.mix(x.flatten(2).mT).mT.reshape(2, 4, 6, 6),
        {"mix": nn.Conv1d(36, 36, 1, stride=2)},
        "aten.conv1d takes it for positions",
    ),
}


@pytest.mark.parametrize("name", REFUSES)
def test_channels_stay_with_the_reason(name: str) -> None:
    between, parts, reason = REFUSES[name]
    reads = {"channel padding": 10, "pools over channels": 4, "strides over channels": 4}.get(name, 8)
    graph = graph_of(pair(between, reads=reads, **parts), *IMAGES)
    reasons = why(graph, "a.weight")
    assert None not in reasons
    assert any(reason in str(said) for said in reasons)


def test_a_sum_couples_and_a_product_too() -> None:
    parts = {"a": nn.Linear(4, 6), "b": nn.Linear(4, 6), "c": nn.Linear(4, 6), "d": nn.Linear(6, 2)}
    graph = graph_of(Wired(lambda m, x: m.d((m.a(x) + m.b(x)) * torch.sigmoid(m.c(x))), **parts), 3, 4)
    assert together(graph, ("a.weight", 0), ("b.weight", 0), ("c.weight", 0), ("d.weight", 1))


def test_a_gate_of_one_channel_couples_nothing() -> None:
    parts = {"a": nn.Linear(4, 6), "b": nn.Linear(4, 1), "d": nn.Linear(6, 2)}
    graph = graph_of(Wired(lambda m, x: m.d(m.a(x) * torch.sigmoid(m.b(x))), **parts), 3, 4)
    assert together(graph, ("a.weight", 0), ("d.weight", 1))
    assert not set(graph.tensors["b.weight"][0].tolist()) & set(graph.tensors["a.weight"][0].tolist())


def test_concatenation_puts_channels_one_after_the_other() -> None:
    parts = {"a": nn.Linear(4, 3), "b": nn.Linear(4, 5), "c": nn.Linear(12, 2)}
    graph = graph_of(Wired(lambda m, x: m.c(torch.cat([m.a(x), x, m.b(x)], 1)), **parts), 3, 4)
    reader = graph.tensors["c.weight"][1]
    assert torch.equal(reader[:3], graph.tensors["a.weight"][0])
    assert torch.equal(reader[7:], graph.tensors["b.weight"][0])
    assert {graph.pinned.get(c) for c in reader[:3].tolist() + reader[7:].tolist()} == FREE
    assert all("fixed size through aten.cat" in graph.pinned[c] for c in reader[3:7].tolist())


def test_flattening_gives_a_filter_all_its_positions() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 2))
    graph = graph_of(model, *IMAGES)
    assert torch.equal(graph.tensors["3.weight"][1], graph.tensors["0.weight"][0].repeat_interleave(16))


def test_a_depthwise_convolution_carries_its_channels_on() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 3, groups=4), nn.Conv2d(8, 2, 1))
    graph = graph_of(model, *IMAGES)
    assert torch.equal(graph.tensors["1.weight"][0], graph.tensors["0.weight"][0].repeat_interleave(2))
    assert torch.equal(graph.tensors["2.weight"][1], graph.tensors["1.weight"][0])


def test_the_groups_of_a_convolution_lose_the_same_channels() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 4, 3, groups=2), nn.Conv2d(4, 2, 1))
    graph = graph_of(model, *IMAGES)
    before, after = graph.tensors["0.weight"][0], graph.tensors["1.weight"][0]
    assert torch.equal(before, graph.tensors["1.weight"][1].repeat(2))
    assert torch.equal(after[:2], after[2:])
    assert len(before.unique()) == 3
    assert torch.equal(graph.tensors["2.weight"][1], after)


def test_squeeze_and_excite_couples_its_last_layer_with_its_input() -> None:
    parts = {"a": nn.Conv2d(3, 8, 1), "down": nn.Conv2d(8, 2, 1), "up": nn.Conv2d(2, 8, 1), "b": nn.Conv2d(8, 2, 1)}

    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.a(x)
        return m.b(x * torch.sigmoid(m.up(F.relu(m.down(F.adaptive_avg_pool2d(x, 1))))))

    graph = graph_of(Wired(forward, **parts), *IMAGES)
    assert together(graph, ("a.weight", 0), ("down.weight", 1), ("up.weight", 0), ("b.weight", 1))
    assert together(graph, ("down.weight", 0), ("up.weight", 1))


def test_glu_couples_value_and_gate() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.GLU(), nn.Linear(3, 2))
    graph = graph_of(model, 3, 4)
    assert torch.equal(graph.tensors["0.weight"][0], graph.tensors["2.weight"][1].repeat(2))


@pytest.mark.parametrize("swapped", [False, True])
def test_a_layer_under_two_names_is_one_layer(swapped: bool) -> None:
    layer = nn.Linear(6, 6)
    parts = {"a": nn.Linear(4, 6), "one": layer, "two": layer, "b": nn.Linear(6, 2)}

    def forward(m: Any, x: Tensor) -> Tensor:
        first, second = (m.two, m.one) if swapped else (m.one, m.two)
        return m.b(F.relu(second(F.relu(first(m.a(x))))))

    graph = graph_of(Wired(forward, **parts), 3, 4)
    assert "two.weight" not in graph.tensors
    assert together(graph, ("a.weight", 0), ("one.weight", 0), ("one.weight", 1), ("one.bias", 0), ("b.weight", 1))
    assert graph.reads.keys() == {"a", "one", "b"}
    assert len(graph.reads["one"]) == 2


def test_readers_of_one_activation_are_known() -> None:
    parts = {"a": nn.Linear(4, 6), "b": nn.Linear(6, 2), "c": nn.Linear(6, 2)}

    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.a(x)
        return m.b(x) + m.c(x)

    reads = graph_of(Wired(forward, **parts), 3, 4).reads
    assert reads["b"] == reads["c"] != reads["a"]


def test_outputs_in_dicts_and_tuples_show_their_channels() -> None:
    parts = {"a": nn.Linear(4, 6), "b": nn.Linear(6, 2), "c": nn.Linear(4, 3)}
    model = Wired(lambda m, x: {"features": (hidden := m.a(x)), "heads": (m.b(hidden), m.c(x))}, **parts)
    graph = graph_of(model, 3, 4)
    assert all(why(graph, f"{name}.weight") == VISIBLE for name in ("a", "b", "c"))


def test_a_pixelwise_convolution_over_channels_lets_them_pass() -> None:
    model = pair(lambda m, x: m.mix(x.flatten(2).mT).mT.reshape(x.shape), mix=nn.Conv1d(36, 36, 1))
    graph = graph_of(model, *IMAGES)
    assert together(graph, ("a.weight", 0), ("b.weight", 1))
    assert why(graph, "a.weight") == FREE


def test_an_embedding_may_lose_features_but_no_words() -> None:
    model = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 2))
    graph = trace(model, Example.of(torch.zeros(2, 3, dtype=torch.long)))
    assert together(graph, ("0.weight", 1), ("1.weight", 1))
    assert why(graph, "0.weight") == {"it is an embedding's vocabulary"}


def test_the_batch_norm_after_a_layer_is_the_one_that_reads_it_alone() -> None:
    parts = {"a": nn.Linear(4, 6), "n": nn.BatchNorm1d(6), "b": nn.Linear(6, 6), "s": nn.BatchNorm1d(6)}

    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.n(m.a(x))
        return m.s(m.b(x)) + m.s(x)  # the second norm has other things to normalise too

    assert graph_of(Wired(forward, **parts), 3, 4).norm_after == {"a": "n"}


def _under_autocast(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = m.b(torch.relu(m.a(x)))
        with torch.autocast("cpu", enabled=False):
            return m.c(x.float())


def _with_gradients(m: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = m.a(x)
    return m.c(m.b(torch.relu(x)))


@pytest.mark.parametrize("forward", [_under_autocast, _with_gradients])
def test_other_modes_are_looked_into(forward: Callable[[Any, Tensor], Tensor]) -> None:
    parts = {"a": nn.Linear(4, 6), "b": nn.Linear(6, 5), "c": nn.Linear(5, 2)}
    graph = graph_of(Wired(forward, **parts), 3, 4)
    assert together(graph, ("a.weight", 0), ("b.weight", 1))
    assert together(graph, ("b.weight", 0), ("c.weight", 1))
    assert why(graph, "a.weight") == why(graph, "b.weight") == FREE
    assert not graph.directly_read.by
    assert graph.reads.keys() == {"a", "b", "c"}
    assert len(set(graph.reads.values())) == 3


def test_tracing_leaves_no_trace() -> None:
    model = pair(lambda m, x: F.dropout(m.norm(x), 0.5, m.training), norm=nn.BatchNorm2d(8)).train()
    model.norm.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    example = Example.of(torch.randn(IMAGES))
    random = torch.get_rng_state()
    trace(model, example)
    assert torch.equal(torch.get_rng_state(), random)
    assert [m.training for m in (model, model.a, model.norm)] == [True, True, False]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
