"""Any layer's input becomes the same table of samples by channels."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pcn.layers import CONVOLUTIONS, LINEAR
from pcn.statistics.blocks import as_block, pooled, rows_of

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


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_pooling_averages_squares(spatial):
    x = torch.arange(2.0 * 3 * 4**spatial).view(2, 3, *(4,) * spatial)
    small = pooled(x, CONV[spatial], 2)
    assert small.shape == (2, 3, *(2,) * spatial)
    assert torch.equal(small.mean((0, *range(2, 2 + spatial))), x.mean((0, *range(2, 2 + spatial))))
    assert pooled(x, CONV[spatial], 100).shape[2:] == (1,) * spatial
    assert pooled(x.flatten(1), LINEAR, 2).shape == (2, 3 * 4**spatial)
