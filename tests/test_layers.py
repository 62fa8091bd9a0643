"""How layers are seen: as one weight, outputs first."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pcn.layers import LAYER_TYPES, NEEDED, TYPE_OF, LayerType, canonical_weight, in_width, out_width
from pcn.nn import PCConv2d, PCLinear


class Turned(nn.Linear):
    """A dense layer whose weight has its inputs first."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(outputs, inputs)
        self.in_features, self.out_features = inputs, outputs
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


@pytest.fixture
def turned_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = LayerType("turned", spatial=0, out_dim=1, in_dim=0)
    monkeypatch.setitem(LAYER_TYPES, kind.kind, kind)
    monkeypatch.setitem(TYPE_OF, Turned, kind)


@pytest.mark.parametrize("sizes", [(16, 16), (16, 12)])
def test_a_layer_type_says_where_the_channels_of_a_weight_stand(turned_is_known: None, sizes: tuple[int, int]) -> None:
    layer = Turned(*sizes)
    assert (in_width(layer), out_width(layer)) == sizes
    x = torch.randn(5, sizes[0])
    torch.testing.assert_close(x @ canonical_weight(layer).T + layer.bias, layer(x))


def test_all_that_principal_component_layers_have_beyond_stock_ones_is_kept_free() -> None:
    pairs = (PCLinear(2, 2, rank=1), nn.Linear(2, 2)), (PCConv2d(2, 2, 1, rank=1), nn.Conv2d(2, 2, 1))
    more = {name for new, stock in pairs for name in {*dir(new)} - {*dir(stock)} if not name.startswith("_")}
    assert more - {"groups"} == set(NEEDED)  # groups is a number of the stock convolutions
