"""How layers are seen: as one weight, outputs first."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pcn.layers import LAYER_TYPES, TYPE_OF, LayerType, canonical_weight, in_width, out_width


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
