"""The changes of basis say exactly what the design says that they say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from explicit_form import CONVOLVE, Case, cases, channels_first, channels_last, convolve_valid, distance, explicit, pad
from pcn.errors import PlanError
from pcn.maths.moments import project_first_moment
from pcn.maths.products import select_inputs
from pcn.maths.transform import (
    Projected,
    dense_form,
    dropped_part,
    factored_form,
    input_transform,
    reader_transform,
)

ORDERS = ("truncate_first", "project_first", "kept_block")


@st.composite
def cases_with_kept(draw: st.DrawFn) -> tuple[Case, Tensor]:
    """A case, and the same number of inputs kept in each of its groups, not the same ones."""
    case = draw(cases())
    width = case.layer.weight.shape[1]
    count = draw(st.integers(1, width))
    chosen = st.lists(st.integers(0, width - 1), min_size=count, max_size=count, unique=True)
    kept = [group * width + i for group in range(case.groups) for i in sorted(draw(chosen))]
    return case, torch.tensor(kept)


def transform(case: Case, kept: Tensor | None, order: str, basis: Tensor) -> Projected:
    """Transform the case's layer; the kept block's eigenvectors may be any orthonormal basis of its full size."""
    layer, block = case.layer, None
    if order == "kept_block" and kept is not None:
        size = len(kept) // case.groups
        block = torch.cat([torch.linalg.qr(torch.randn(size, size).double())[0] for _ in range(case.groups)])
    options = {"kept": kept, "order": order, "groups": case.groups, "block_basis": block}
    return reader_transform(layer.weight, layer.bias, case.mean, basis, **options)


def run(projected: Projected, x: Tensor, case: Case) -> Tensor:
    return explicit(x, *projected[:4], case.layer)


def pixelwise(x: Tensor, weight: Tensor, groups: int) -> Tensor:
    """Apply a plain 1x1 layer."""
    return F.linear(x, weight) if weight.dim() == 2 else CONVOLVE[weight.dim() - 2](x, weight, groups=groups)


@given(cases())
def test_full_rank_leaves_the_function_unchanged(case: Case) -> None:
    layer = case.layer
    weight, bias = input_transform(layer.weight, layer.bias, case.mean, case.basis, case.groups)
    assert distance(explicit(case.x, weight, bias, case.mean, case.basis, layer), case.stock_output()) < 1e-12


@given(cases_with_kept(), st.sampled_from(ORDERS))
def test_each_order_says_what_a_dropped_input_counts_as(drawn: tuple[Case, Tensor], order: str) -> None:
    case, kept = drawn
    layer, channel = case.layer, 1 - case.layer.weight.dim()
    reduced = run(transform(case, kept, order, case.basis), case.x.index_select(channel, kept), case)
    padded = channels_last(pad(case.x, layer), layer)
    dropped = torch.ones(padded.shape[-1], dtype=torch.bool)
    dropped[kept] = False
    instead = torch.zeros_like(case.mean) if order == "truncate_first" else case.mean
    padded = torch.where(dropped, instead, padded)  # padding included
    expected = convolve_valid(channels_first(padded, layer), layer.weight, layer.bias, layer)
    assert distance(reduced, expected) < 1e-12


@given(cases(), st.sampled_from(ORDERS))
def test_orders_agree_when_nothing_is_dropped(case: Case, order: str) -> None:
    everything = torch.arange(case.layer.weight.shape[1] * case.groups)
    plain = transform(case, None, "truncate_first", case.truncated)
    assert all(torch.equal(a, b) for a, b in zip(transform(case, None, order, case.truncated)[:4], plain, strict=False))
    if order != "kept_block":
        same = transform(case, everything, order, case.truncated)
        assert all(distance(a, b) < 1e-12 for a, b in zip(same[:4], plain, strict=False))


@given(cases())
def test_the_dropped_part_is_what_the_dense_form_misses(case: Case) -> None:
    layer = case.layer
    small = transform(case, None, "truncate_first", case.truncated)
    lost = dropped_part(layer.weight, small, case.groups)
    weight, bias = dense_form(*small[:4], case.groups, offset=lost)
    assert distance(weight, layer.weight) < 1e-12
    assert distance(bias, layer.bias if layer.bias is not None else torch.zeros_like(bias)) < 1e-12


@given(cases(), st.booleans())
def test_dense_and_factored_forms_are_the_explicit_form(case: Case, both_sides: bool) -> None:
    layer = case.layer
    small = transform(case, None, "truncate_first", case.truncated)
    weight, outputs = small.weight, None
    if both_sides:
        outputs = torch.randn(len(small.bias), 2, dtype=torch.float64)
        core = torch.randn(2 * case.groups, *weight.shape[1:], dtype=torch.float64)
        pairs = zip(outputs.chunk(case.groups), core.chunk(case.groups), strict=True)
        weight = torch.cat([torch.tensordot(v, w, 1) for v, w in pairs])
        small = small._replace(weight=core)
    expected = explicit(case.x, weight, small.bias, case.mean, case.truncated, layer)
    dense, bias = dense_form(*small[:4], case.groups, output_basis=outputs)
    assert distance(convolve_valid(pad(case.x, layer), dense, bias, layer), expected) < 1e-12
    factors = factored_form(*small[:4], case.groups, output_basis=outputs)
    y = convolve_valid(pad(pixelwise(case.x, factors.projection, case.groups), layer), factors.weight, None, layer)
    if factors.expansion is not None:
        y = pixelwise(y, factors.expansion, case.groups)
    y = channels_first(channels_last(y, layer) + factors.bias, layer)
    assert distance(y, expected) < 1e-12


@given(cases_with_kept(), st.sampled_from(ORDERS))
def test_the_first_moment_follows_the_gradient(drawn: tuple[Case, Tensor], order: str) -> None:
    case, kept = drawn
    layer = case.layer
    x = case.x.index_select(1 - layer.weight.dim(), kept)
    small = transform(case, kept, order, case.truncated)
    weight = select_inputs(layer.weight.detach(), kept, case.groups).requires_grad_()
    bias = torch.zeros(len(weight), dtype=torch.float64, requires_grad=True)
    y = convolve_valid(pad(x, layer), weight, bias, layer)
    outer = torch.randn_like(y)
    y.backward(outer)
    new_weight, new_bias = small.weight.requires_grad_(), small.bias.requires_grad_()
    explicit(x, new_weight, new_bias, small.mean, small.basis, layer).backward(outer)
    full = torch.zeros_like(layer.weight)
    width = full.shape[1]
    for group, rows in enumerate(full.chunk(case.groups)):  # the parent's moment covers the dropped inputs too
        rows[:, kept[kept // width == group] % width] = weight.grad.chunk(case.groups)[group]
    carried = project_first_moment(full, bias.grad, small.mean, small.basis, kept, case.groups)
    assert distance(carried, new_weight.grad) < 1e-12
    assert distance(bias.grad, new_bias.grad) < 1e-12


def test_moments_without_a_bias() -> None:
    moment, basis, mean = torch.randn(4, 6), torch.linalg.qr(torch.randn(6, 6))[0][:, :3], torch.randn(6)
    assert torch.allclose(project_first_moment(moment, None, mean, basis), moment @ basis, atol=1e-6)


def test_results_have_the_dtype_of_the_weight() -> None:
    weight, mean, basis = torch.randn(4, 6, dtype=torch.bfloat16), torch.randn(6).double(), torch.eye(6).double()
    small = reader_transform(weight, None, mean, basis, kept=None, order="truncate_first")
    assert {tensor.dtype for tensor in small[:4]} == {torch.bfloat16}
    # b~ belongs to the mean as it is stored
    exact = weight.double() @ small.mean.double()
    assert torch.equal(small.bias, exact.bfloat16())


def test_meta_tensors_give_shapes() -> None:
    weight, mean, basis = torch.empty(4, 3, 3, 3, device="meta"), torch.zeros(6), torch.zeros(6, 2)
    kept = torch.tensor([0, 2, 3, 4])
    small = reader_transform(weight, None, mean, basis, kept=kept, order="truncate_first", groups=2)
    assert [tuple(t.shape) for t in small[:4]] == [(4, 2, 3, 3), (4,), (4,), (4, 2)]


def test_what_does_not_fit_is_refused() -> None:
    weight, mean, basis = torch.randn(4, 3), torch.zeros(6), torch.zeros(6, 2)
    with pytest.raises(PlanError, match="same number in each"):
        reader_transform(weight, None, mean, basis, kept=torch.tensor([0, 1, 3]), order="project_first", groups=2)
    with pytest.raises(PlanError, match="needs block_basis"):
        reader_transform(weight, None, mean, basis, kept=torch.tensor([0, 3]), order="kept_block", groups=2)
