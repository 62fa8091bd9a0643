"""Blocks fall into pieces that hold every sample once, and sums over them keep their precision."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pcn.layers import LINEAR
from pcn.statistics import pieces as module
from pcn.statistics.blocks import as_block, rows_of
from pcn.statistics.pieces import add_gram_, exact_products, pieces, pilot_mean

SHAPES = st.tuples(st.integers(1, 7), st.integers(1, 3), st.integers(1, 4), st.integers(1, 30))


@given(shape=SHAPES, rows=st.booleans(), shift=st.booleans(), half=st.booleans(), bound=st.integers(1, 60))
def test_pieces_hold_every_sample_once(shape, rows, shift, half, bound):
    block = torch.randn(shape).to(torch.bfloat16 if half else torch.float32)
    if rows:
        block = as_block(rows_of(block), LINEAR, shape[1])
    pilot = torch.randn(shape[1:3]) * shift
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_PIECE", bound)
        patch.setattr(module, "LONGEST_SUM", 16)
        found = [piece.clone() for piece in pieces(block, pilot, shift)]
    assert all(piece.dtype == torch.float32 for piece in found)
    assert all(piece.numel() <= max(bound, shape[1] * shape[2]) * 16 for piece in found)
    table = torch.cat([piece.permute(0, 3, 1, 2).reshape(-1, shape[1] * shape[2]) for piece in found])
    expected = rows_of(block).float() - pilot.flatten()
    assert torch.equal(table.sort(0).values, expected.sort(0).values)


@given(shape=SHAPES, rows=st.booleans())
def test_products_are_summed_over_all_samples(shape, rows):
    block = torch.randn(shape, dtype=torch.float64)
    if rows:
        block = as_block(rows_of(block), LINEAR, shape[1])
    sums = torch.zeros(shape[1], shape[2], shape[2], dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONGEST_SUM", 16)
        for piece in pieces(block, torch.zeros(shape[1:3], dtype=torch.float64), shift=False):
            add_gram_(sums, piece)
    torch.testing.assert_close(sums, torch.einsum("bgip,bgjp->gij", block, block))


def test_untouched_pieces_are_no_copies():
    images = torch.randn(4, 1, 6, 50)
    zero = torch.zeros(1, 6)
    for block in (images, as_block(torch.randn(40, 6), LINEAR)):
        for piece in pieces(block, zero, shift=False):
            assert piece.untyped_storage().data_ptr() == block.untyped_storage().data_ptr()


def test_the_pilot_takes_large_means_out_and_leaves_small_ones():
    rows = torch.randn(500, 3)
    near, far = (as_block(rows + torch.tensor([0.0, 0.0, mean]), LINEAR) for mean in (1.0, 50.0))
    assert torch.equal(pilot_mean(near), torch.zeros(1, 3))
    torch.testing.assert_close(pilot_mean(far), rows.mean(0, keepdim=True) + torch.tensor([0.0, 0.0, 50.0]))
    dead = as_block(torch.relu(rows) * torch.tensor([1.0, 1.0, 0.0]), LINEAR)
    assert torch.equal(pilot_mean(dead), torch.zeros(1, 3))
    assert torch.equal(pilot_mean(as_block(torch.ones(1, 3), LINEAR)), torch.ones(1, 3))


@pytest.mark.parametrize("groups", [1, 2])
def test_long_sums_in_fp32_stay_exact(groups):
    rows = torch.rand(500_000, 2 * groups)
    sums = torch.zeros(groups, 2, 2, dtype=torch.float64)
    for piece in pieces(as_block(rows, LINEAR, groups), torch.zeros(groups, 2), shift=False):
        add_gram_(sums, piece)
    whole = [part.T @ part for part in rows.double().split(2, dim=1)]
    torch.testing.assert_close(sums, torch.stack(whole), rtol=3e-7, atol=0)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_precision_settings_come_back(precision):
    before = torch.get_float32_matmul_precision()
    backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    try:
        torch.set_float32_matmul_precision(precision)
        settings = [backend.fp32_precision for backend in backends]
        with exact_products(torch.device("cpu")):
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.get_float32_matmul_precision() == precision
        assert [backend.fp32_precision for backend in backends] == settings
    finally:
        torch.set_float32_matmul_precision(before)


def test_settings_by_backend_come_back_too():
    backend = torch.backends.cuda.matmul
    before = backend.fp32_precision
    try:
        backend.fp32_precision = "tf32"
        with exact_products(torch.device("cpu")):
            assert backend.fp32_precision == "ieee"
        assert backend.fp32_precision == "tf32"
    finally:
        backend.fp32_precision = before
