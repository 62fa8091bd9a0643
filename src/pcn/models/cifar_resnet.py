"""The CIFAR-10 ResNets: three stages of basic blocks, a projection shortcut at the start of every stage."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from pcn.models.initialise import resnet_
from pcn.models.residual import batch_norm, convolution, projection


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, batch norm after each, and a shortcut added before the last ReLU."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1, project: bool = False) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride)
        self.bn1 = batch_norm(outputs)
        self.conv2 = convolution(outputs, outputs, 3)
        self.bn2 = batch_norm(outputs)
        self.shortcut = projection(inputs, outputs, stride) if project else nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride=stride, project=True)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs) for _ in range(blocks - 1)))


class CIFARResNet(nn.Module):
    """A first convolution, three stages of ``blocks`` blocks of width, 2 x width and 4 x width, a dense layer."""

    def __init__(self, blocks: int, width: int, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = convolution(3, width, 3)
        self.bn1 = batch_norm(width)
        self.stage1 = _stage(width, width, blocks, stride=1)
        self.stage2 = _stage(width, 2 * width, blocks, stride=2)
        self.stage3 = _stage(2 * width, 4 * width, blocks, stride=2)
        self.fc = nn.Linear(4 * width, classes)
        resnet_(self)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)))
        x = self.stage3(self.stage2(self.stage1(x)))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


def resnet20(width: int = 16, classes: int = 10) -> CIFARResNet:
    """Build ResNet-20; ``width`` is that of the first stage.

    >>> resnet20().stage3[2].conv2.weight.shape
    torch.Size([64, 64, 3, 3])
    """
    return CIFARResNet(3, width, classes)


def resnet110(width: int = 16, classes: int = 10) -> CIFARResNet:
    """Build ResNet-110: 18 blocks a stage."""
    return CIFARResNet(18, width, classes)


def wide_resnet20(width: int = 64, classes: int = 10) -> CIFARResNet:
    """Build WideResNet-20: ResNet-20 at four times its width, or at any other; 32 is the half-width control."""
    return CIFARResNet(3, width, classes)
