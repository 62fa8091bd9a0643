"""Conv4: four convolutions and three dense layers, a VGG for CIFAR-10."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from pcn.models.initialise import glorot_uniform_


class Conv4(nn.Module):
    """64, 64, pool, 128, 128, pool, 256, 256, classes: 3x3 convolutions with zero padding on 32x32 images.

    Another ``width`` than 64 scales all of them.
    """

    def __init__(self, classes: int = 10, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.conv3 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.conv4 = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.fc1 = nn.Linear(2 * width * 8 * 8, 4 * width)
        self.fc2 = nn.Linear(4 * width, 4 * width)
        self.output = nn.Linear(4 * width, classes)
        glorot_uniform_(self)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.conv1(images))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.conv3(x))
        x = F.max_pool2d(F.relu(self.conv4(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        return self.output(x)  # type: ignore[no-any-return]


def conv4(classes: int = 10, width: int = 64) -> Conv4:
    """Build Conv4.

    >>> conv4().fc1, conv4(width=32).fc1
    (Linear(in_features=8192, out_features=256, bias=True), Linear(in_features=4096, out_features=128, bias=True))
    """
    return Conv4(classes, width)
