"""Any layer's input becomes the same table of samples by channels."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pcn.layers import CONVOLUTIONS, LINEAR
from pcn.statistics import blocks
from pcn.statistics.blocks import as_block, exact_products, pooled, rows_of, shifted_pieces

CONV = {kind.spatial: kind for kind in CONVOLUTIONS.values()}


@given(
    spatial=st.integers(1, 3),
    groups=st.sampled_from([1, 2, 3]),
    batched=st.booleans(),
    channels_last=st.booleans(),
    size=st.integers(1, 4),
)
def test_a_convolution_gives_depth_vectors(spatial, groups, batched, channels_last, size):
    x = torch.randn(*((5,) if batched else ()), 6, *(size,) * spatial)
    if channels_last:
        x = x.movedim(-spatial - 1, -1).contiguous().movedim(-1, -spatial - 1)
    block = as_block(x, CONV[spatial], groups)
    assert block.shape[1:3] == (groups, 6 // groups)
    assert torch.equal(rows_of(block), x.movedim(-spatial - 1, -1).reshape(-1, 6))
    if not channels_last:
        assert block.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@given(lead=st.lists(st.integers(1, 4), max_size=3))
def test_a_linear_layer_gives_all_tokens(lead):
    x = torch.randn(*lead, 6)
    block = as_block(x, LINEAR)
    assert torch.equal(rows_of(block), x.reshape(-1, 6))
    assert block.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@given(
    shape=st.tuples(st.integers(1, 7), st.integers(1, 3), st.integers(1, 4), st.integers(1, 9)),
    rows=st.booleans(),
    piece=st.integers(1, 60),
)
def test_pieces_hold_every_sample_once(shape, rows, piece):
    block = torch.randn(shape)
    if rows:
        block = as_block(rows_of(block), LINEAR, shape[1])
    pilot = torch.randn(shape[1:3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "MAX_PIECE", piece)
        pieces = [p.clone() for p in shifted_pieces(block, pilot)]
    assert all(p.numel() <= max(piece, shape[1] * shape[2]) for p in pieces)
    found = torch.cat(pieces, dim=-1).flatten(0, 1).T
    expected = rows_of(block) - pilot.flatten()
    assert torch.equal(found.sort(0).values, expected.sort(0).values)


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_pooling_averages_squares(spatial):
    x = torch.arange(2.0 * 3 * 4**spatial).view(2, 3, *(4,) * spatial)
    small = pooled(x, CONV[spatial], 2)
    assert small.shape == (2, 3, *(2,) * spatial)
    assert torch.equal(small.mean((0, *range(2, 2 + spatial))), x.mean((0, *range(2, 2 + spatial))))
    assert pooled(x, CONV[spatial], 100).shape[2:] == (1,) * spatial
    assert pooled(x.flatten(1), LINEAR, 2).shape == (2, 3 * 4**spatial)


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
