"""VGG-19 for ImageNet: sixteen 3x3 convolutions, three dense layers, no batch norm."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

from pcn.models.initialise import glorot_uniform_

VGG19_BLOCKS = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # (width, convolutions), each ended by a 2x2 max pool


class VGG(nn.Module):
    """Convolutions named ``features.conv<block>_<number>``, then fc1, fc2 and output; ``size`` x ``size`` images."""

    def __init__(
        self, blocks: tuple[tuple[int, int], ...], classes: int = 1000, dense: int = 4096, size: int = 224
    ) -> None:
        super().__init__()
        self.features = _features(blocks)
        self.fc1 = nn.Linear(blocks[-1][0] * (size >> len(blocks)) ** 2, dense)
        self.fc2 = nn.Linear(dense, dense)
        self.output = nn.Linear(dense, classes)
        self.dropout = nn.Dropout(0.5)
        glorot_uniform_(self)

    def forward(self, images: Tensor) -> Tensor:
        x = self.features(images).flatten(1)
        x = F.relu(self.fc1(self.dropout(x)))
        x = F.relu(self.fc2(self.dropout(x)))
        return self.output(x)  # type: ignore[no-any-return]


def _features(blocks: tuple[tuple[int, int], ...]) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    inputs = 3
    for block, (width, convolutions) in enumerate(blocks, start=1):
        for number in range(1, convolutions + 1):
            layers[f"conv{block}_{number}"] = nn.Conv2d(inputs, width, 3, padding=1)
            layers[f"relu{block}_{number}"] = nn.ReLU(inplace=True)
            inputs = width
        layers[f"pool{block}"] = nn.MaxPool2d(2)
    return nn.Sequential(layers)


def vgg19(width: int = 64, classes: int = 1000, dense: int = 4096, size: int = 224) -> VGG:
    """Build VGG-19: 144 million parameters, nine in ten of them in the dense layers; ``width`` is the first block's."""
    blocks = tuple((outputs * width // 64, convolutions) for outputs, convolutions in VGG19_BLOCKS)
    return VGG(blocks, classes, dense, size)
