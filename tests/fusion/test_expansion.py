"""Kernels out of patterns of taps are one product in a fused layer, and never one with what is frozen no longer."""

from __future__ import annotations

import copy
import io
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code

from fusion.networks import NETWORKS
from pcn.fusion import FORMS, fuse_, unfuse_
from pcn.nn import PCConv2d

pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # torch 2.11's own, at the first use
forms = pytest.mark.parametrize("form", FORMS)
IMAGES = (5, 8, 6, 6)


def layer(**keywords: Any) -> PCConv2d:
    made = PCConv2d(8, 6, 3, rank=5, padding=1, kernel_rank=2, dtype=torch.float64, **keywords)
    nn.init.uniform_(made.mean)
    assert made.kernel_mask is not None
    made.kernel_mask.zero_()
    for direction, patterns in enumerate((4, 1, 2, 1, 2)):  # as many as are dealt out evenly
        made.kernel_mask[direction, :patterns] = 1
    return made


def fused(
    form: Any, copied: Callable[[nn.Module], nn.Module] = lambda model: model, **keywords: Any
) -> tuple[nn.Module, nn.Module, Tensor]:
    """A convolution with patterns behind a batch norm, perhaps copied, fused; its twin that is not; and a batch."""
    model = copied(nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), layer(**keywords)).double())
    twin, batch = copy.deepcopy(model), torch.randn(IMAGES, dtype=torch.float64)
    fuse_(model, batch, forms=form)
    return model, twin, batch


def assert_same(model: Callable[[Tensor], Tensor], twin: nn.Module, batch: Tensor) -> None:
    torch.testing.assert_close(model(batch), twin(batch), rtol=1e-8, atol=1e-8)


@torch.no_grad()
def change(model: nn.Module, twin: nn.Module, name: str, way: str) -> None:
    """Give a frozen tensor of both other values: the twin in place, the model in some way."""
    before = getattr(model[2], name)
    other = before.flip(0) if name == "kernel_mask" else torch.randn_like(before)
    getattr(twin[2], name).copy_(other)
    if way == "load":
        model.load_state_dict(twin.state_dict())
    elif way == "write":
        before.copy_(other)
    else:
        setattr(model[2], name, other)


def looks_up(model: nn.Module, batch: Tensor) -> bool:
    """Whether a layer looks its patterns up and multiplies each direction by its own."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        model(batch)
    return {"aten::bmm", "aten::gather"} <= {event.name for event in seen.events()}


@forms
def test_nothing_is_looked_up(form: Any) -> None:
    model, twin, batch = fused(form)
    assert looks_up(twin, batch)
    assert not looks_up(model, batch)


@forms
@pytest.mark.parametrize("keywords", [{}, {"output_rank": 4}], ids=["one side", "both sides"])
def test_it_is_the_layers_own(form: Any, keywords: dict[str, Any]) -> None:
    model, twin, batch = fused(form, **keywords)
    assert_same(model, twin, batch)
    for network in (model, twin):
        network(batch).square().sum().backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-8, atol=1e-8)


@forms
@pytest.mark.parametrize("name", ["basis", "kernel_basis", "kernel_mask"])
@pytest.mark.parametrize("way", ["load", "write", "put in its place"])
def test_what_changes_later_counts(form: Any, name: str, way: str) -> None:
    model, twin, batch = fused(form)
    change(model, twin, name, way)
    assert_same(model, twin, batch)


@forms
def test_compiled_code_follows_what_is_loaded(form: Any) -> None:
    model, twin, batch = fused(form)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_same(compiled, twin, batch)
    nn.init.normal_(twin[2].kernel_basis)
    model.load_state_dict(twin.state_dict())
    assert_same(compiled, twin, batch)
    torch.compiler.reset()


@forms
def test_nothing_is_looked_up_in_compiled_code(form: Any) -> None:
    model, twin, batch = fused(form)
    names: set[str] = set()

    def noting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        names.update(node.name for node in graph.graph.nodes)
        return graph.forward

    torch.compiler.reset()
    assert_same(torch.compile(model, backend=noting, fullgraph=True), twin, batch)
    torch.compiler.reset()
    assert not {"gather", "bmm"} & names


@forms
@pytest.mark.parametrize("name", ["basis", "kernel_basis", "kernel_mask"])
@pytest.mark.parametrize("way", ["write", "put in its place"])
def test_compiled_code_counts_what_has_changed_before(form: Any, name: str, way: str) -> None:
    """As where processes are given the first one's bases when the model is wrapped."""
    model, twin, batch = fused(form)
    change(model, twin, name, way)
    torch.compiler.reset()
    assert_same(torch.compile(model, backend="eager", fullgraph=True), twin, batch)
    torch.compiler.reset()


@forms
@pytest.mark.parametrize("name", ["basis", "kernel_basis", "kernel_mask"])
def test_compiled_code_follows_what_is_put_in_place(form: Any, name: str) -> None:
    model, twin, batch = fused(form)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_same(compiled, twin, batch)
    change(model, twin, name, "put in its place")
    assert_same(compiled, twin, batch)
    torch.compiler.reset()


@forms
def test_compiled_code_makes_no_copy_of_what_is_frozen(form: Any) -> None:
    """A copy in another layout, at every step: as large as what it is made of, and kept for the backward pass."""
    model, twin, batch = fused(form)
    expansion = model[2].use.expansion
    if expansion is None:
        pytest.skip("this form has none")
    batch = batch.contiguous(memory_format=torch.channels_last)  # for which the compiler lays images out
    torch.compiler.reset()
    output, codes = run_and_get_code(lambda: fw_bw(torch.compile(model, fullgraph=True), batch))
    torch.testing.assert_close(output, twin(batch), rtol=1e-8, atol=1e-8)
    torch.compiler.reset()
    made = [size for code in codes for size in re.findall(r"= empty_strided_cpu\(\((.*?)\), \(", code)]
    assert len(codes) == 2
    assert made
    assert expansion.frozen.numel() not in [math.prod(map(int, re.findall(r"\d+", size))) for size in made]


def fw_bw(model: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    output = model(batch)
    output.square().sum().backward()
    return output.detach()


def unpickled(model: nn.Module) -> nn.Module:
    kept = io.BytesIO()
    torch.save(model, kept)
    kept.seek(0)
    read: nn.Module = torch.load(kept, weights_only=False)
    return read


@forms
@pytest.mark.parametrize("copied", [copy.deepcopy, unpickled])
def test_a_copy_has_its_own(form: Any, copied: Callable[[nn.Module], nn.Module]) -> None:
    model, twin, batch = fused(form, copied)
    another = copied(model)
    nn.init.normal_(model[2].kernel_basis)
    assert not looks_up(another, batch)
    assert_same(another, twin, batch)
    assert_same(copied(model), model, batch)  # one of what was written to since


@forms
def test_what_is_fused_for_inference_can_be_trained(form: Any) -> None:
    model, batch = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), layer()).double(), torch.randn(IMAGES).double()
    with torch.inference_mode():
        fuse_(model, batch, forms=form)
    model(batch).sum().backward()
    assert not looks_up(model, batch)


@forms
def test_in_another_dtype_the_layer_does_it_by_itself(form: Any) -> None:
    model, twin, batch = fused(form)
    assert looks_up(model.float(), batch.float())
    torch.testing.assert_close(model(batch.float()), twin.float()(batch.float()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("form", "has"), [("factored", False), ("folded", True)])
def test_there_is_none_where_a_layer_runs_by_its_own_code(form: Any, has: bool) -> None:
    """One that keeps its dropped part, for which there is no projection."""
    model, twin, batch = fused(form, offset=True)
    assert (model[2].use.expansion is not None) == has
    assert_same(model, twin, batch)


def test_whoever_is_not_fused_has_none() -> None:
    make, shape = NETWORKS["patterns"]
    model, batch = make(), torch.randn(shape, dtype=torch.float64)
    kept = model.state_dict().keys()
    fuse_(model, batch)
    assert model.state_dict().keys() == kept
    unfuse_(model)
    assert not any("use" in vars(module) for module in model.modules())
