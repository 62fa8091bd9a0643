"""The operators are what autograd, compilation, export, autocast and FLOP counting take them for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from pcn.kernels import add_moments, batch_moments, norm_project, project, reference
from pcn.kernels.reference import Norm

DOUBLE = torch.float64


def example(dtype: torch.dtype = DOUBLE, rows: int = 9, width: int = 6, rank: int = 3) -> dict[str, Tensor]:
    made = {
        "rows": torch.randn(rows, width, dtype=dtype) * 2 + 1,
        "added": torch.randn(rows, width, dtype=dtype),
        "weight": torch.rand(width, dtype=dtype) + 0.5,
        "bias": torch.randn(width, dtype=dtype),
        "basis": torch.linalg.qr(torch.randn(width, rank, dtype=dtype))[0],
        "centre": torch.rand(width, dtype=dtype),
    }
    mean, variance = reference.batch_moments(made["rows"])
    return made | {"mean": mean, "inverse_std": (variance + 1e-5).rsqrt()}


def stock(given: dict[str, Tensor], training: bool, relu: bool, added: bool, centre: bool) -> tuple[Tensor, Tensor]:
    """The same by PyTorch's own batch norm."""
    variance = given["inverse_std"].detach().square().reciprocal() - 1e-5
    running = None if training else (given["mean"].detach(), variance)
    normed = F.batch_norm(given["rows"], *(running or (None, None)), given["weight"], given["bias"], training)
    y = normed + given["added"] if added else normed
    y = y.relu() if relu else y
    return y, (y - given["centre"] if centre else y) @ given["basis"]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize(("relu", "centre"), [(True, True), (True, False), (False, True)])
def test_outputs_and_gradients_are_those_of_stock_batch_norm(
    training: bool, added: bool, relu: bool, centre: bool
) -> None:
    given = example()
    wanted = [given[name].requires_grad_() for name in ("rows", "weight", "bias", *(["added"] if added else []))]
    expected = stock(given, training, relu, added, centre)
    coming = [torch.randn_like(output) for output in expected]
    for emit in (True, False):
        found = norm_project(*arguments(given, added, centre), relu, emit, training)
        pairs = list(zip(expected, found, coming, strict=True))[0 if emit else 1 :]
        for one, other, _ in pairs:
            torch.testing.assert_close(one, other)
        grads = [
            torch.autograd.grad([pair[side] for pair in pairs], wanted, [g for *_, g in pairs], retain_graph=True)
            for side in (0, 1)
        ]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other)


def arguments(given: dict[str, Tensor], added: bool = True, centre: bool = True) -> tuple[Any, ...]:
    names = ("rows", "added", "weight", "bias", "mean", "inverse_std", "basis", "centre")
    left_out = {"added": added, "centre": centre}
    return tuple(given[name] if left_out.get(name, True) else None for name in names)


@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("emit", [True, False])
def test_gradcheck(added: bool, emit: bool) -> None:
    given = example(rows=5, width=4, rank=2)
    for name in ("rows", "added", "weight", "bias"):
        given[name].requires_grad_()

    def function(rows: Tensor, other: Tensor | None, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        mean, variance = reference.batch_moments(rows.detach())
        fixed = (mean, (variance + 1e-5).rsqrt(), given["basis"], given["centre"])
        return tuple(t for t in norm_project(rows, other, weight, bias, *fixed, True, emit, True) if t.numel())

    moving = given["rows"], given["added"] if added else None, given["weight"], given["bias"]

    def as_stock(rows: Tensor, other: Tensor | None, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        normed = F.batch_norm(rows, None, None, weight, bias, training=True)
        y = (normed if other is None else normed + other).relu()
        return ((y,) if emit else ()) + ((y - given["centre"]) @ given["basis"],)

    # Its statistics are fixed inputs, so that the numerical gradient is that of the stock operators.
    assert torch.autograd.gradcheck(as_stock, moving)
    outputs = function(*moving)
    coming = [torch.randn_like(output) for output in outputs]
    leaves = [tensor for tensor in moving if tensor is not None]
    found = torch.autograd.grad(outputs, leaves, coming)
    for one, other in zip(found, torch.autograd.grad(as_stock(*moving), leaves, coming), strict=True):
        torch.testing.assert_close(one, other)


def test_gradcheck_with_fixed_statistics() -> None:
    given = example(rows=5, width=4, rank=2)
    for name in ("rows", "added", "weight", "bias"):
        given[name].requires_grad_()

    def function(*moving: Tensor) -> Any:
        return norm_project(*moving, *arguments(given)[4:], True, True, False)

    assert torch.autograd.gradcheck(function, arguments(given)[:4])


def test_gradcheck_of_the_projection_and_of_the_sum() -> None:
    given = example(rows=4)
    assert torch.autograd.gradcheck(
        lambda rows: project(rows, given["basis"], given["centre"]), given["rows"].requires_grad_()
    )
    assert torch.autograd.gradcheck(lambda a, b: add_moments(a, b)[0], (given["rows"], given["added"].requires_grad_()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operators_are_registered_as_they_behave(dtype: torch.dtype) -> None:
    given = {
        name: t.to(dtype) if name in ("rows", "added", "basis") else t for name, t in example(torch.float32).items()
    }
    for name in ("rows", "added", "weight", "bias"):
        given[name].requires_grad_()
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for flags in ((True, True, True), (True, False, True), (False, True, False)):
        torch.library.opcheck(torch.ops.pcn.norm_project, (*arguments(given), *flags), test_utils=checks)
    torch.library.opcheck(torch.ops.pcn.project, (given["rows"], given["basis"], given["centre"]), test_utils=checks)
    torch.library.opcheck(torch.ops.pcn.batch_moments, (given["rows"].detach(),), test_utils=checks[:3])
    torch.library.opcheck(torch.ops.pcn.add_moments, (given["rows"], given["added"]), test_utils=checks)
    given = {name: tensor.detach() for name, tensor in given.items()}
    rows, added, *norm, basis, _ = arguments(given)
    coming = rows @ basis, torch.ones_like(rows)
    backward = torch.ops.pcn.norm_project_backward
    for d_p, d_y, other in ((coming[0], coming[1], added), (coming[0], None, None), (None, coming[1], added)):
        torch.library.opcheck(backward, (d_p, d_y, rows, other, None, *norm, basis, True, True), test_utils=checks[:3])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, tensor in example(torch.float32).items():
            self.register_buffer(name, tensor)

    def forward(self, rows: Tensor) -> Tensor:
        mean, variance = batch_moments(rows.detach())
        norm = self.weight, self.bias, mean, (variance + 1e-5).rsqrt()
        return norm_project(rows, None, *norm, self.basis, self.centre, True, False, True)[1]


def test_compiled_and_exported_they_compute_the_same() -> None:
    net, rows = Net(), torch.randn(9, 6, requires_grad=True)
    expected = net(rows)
    (gradient,) = torch.autograd.grad(expected.sum(), rows)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(rows), expected)
    torch.testing.assert_close(torch.autograd.grad(compiled(rows).sum(), rows)[0], gradient)
    program = torch.export.export(net, (rows.detach(),))
    assert any(node.target == torch.ops.pcn.norm_project.default for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(rows.detach()), expected)
    torch.compiler.reset()


def test_autocast_multiplies_in_its_dtype_and_normalises_in_fp32() -> None:
    given = example(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y, projected = norm_project(*arguments(given), True, True, True)
        alone = project(given["rows"], given["basis"], None)
    assert y.dtype == torch.float32
    assert projected.dtype == alone.dtype == torch.bfloat16
    expected, _ = norm_project(*arguments(given), True, True, True)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(projected.float(), (y - given["centre"]) @ given["basis"], rtol=0.02, atol=0.05)


def test_products_are_counted() -> None:
    given = example(rows=10, width=6, rank=3)
    given["rows"].requires_grad_()
    product = 2 * 10 * 6 * 3
    with FlopCounterMode(display=False) as counter:
        _, projected = norm_project(*arguments(given, added=False), True, False, True)
        assert counter.get_total_flops() == product
        projected.sum().backward()
        assert counter.get_total_flops() == 3 * product  # the gradient's product is made in both passes
    with FlopCounterMode(display=False) as counter:
        project(given["rows"].detach(), given["basis"], None)
    assert counter.get_total_flops() == product


def test_expanding_by_an_output_basis_normalises_by_the_small_covariance() -> None:
    given, core, expansion = example(), torch.randn(9, 2, dtype=DOUBLE) + 3, torch.randn(6, 2, dtype=DOUBLE)
    core.requires_grad_()
    args = given["weight"], given["bias"], 1e-5, given["basis"], given["centre"]
    projected, mean, variance = reference.expand_norm_project(core, expansion, *args)
    wide = core @ expansion.T
    normed = F.batch_norm(wide, None, None, given["weight"], given["bias"], training=True)
    expected = (normed.relu() - given["centre"]) @ given["basis"]
    torch.testing.assert_close(projected, expected)
    torch.testing.assert_close(mean, wide.mean(0))
    torch.testing.assert_close(variance, wide.var(0, correction=0))
    coming = torch.randn_like(projected)
    found, wanted = (torch.autograd.grad(output, core, coming)[0] for output in (projected, expected))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("added", "emit", "most"), [(False, False, 1), (True, True, 2), (True, False, 2)])
def test_nothing_full_width_is_kept_that_was_not_there_already(added: bool, emit: bool, most: int) -> None:
    given = example(torch.float32, rows=50, width=64, rank=3)
    given["rows"].requires_grad_()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        norm_project(*arguments(given, added=added), True, emit, True)
    assert len({tensor.data_ptr() for tensor in kept if tensor.numel() == 50 * 64}) == most


def test_norm_is_what_the_reference_takes() -> None:
    given = example()
    norm = Norm(*(given[name] for name in ("weight", "bias", "mean", "inverse_std")))
    y, projected = reference.norm_project(given["rows"], None, norm, None, None)
    assert projected is None
    torch.testing.assert_close(y, stock(given, True, True, False, False)[0])
