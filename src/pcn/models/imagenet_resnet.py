"""The ImageNet ResNets: four stages of bottleneck blocks, downsampling in the 3x3 convolution."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from pcn.models.initialise import resnet_
from pcn.models.residual import batch_norm, convolution, projection

EXPANSION = 4  # a block's outputs are this many times wider than its 3x3 convolution


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, batch norm after each, and a shortcut added before the last ReLU."""

    def __init__(self, inputs: int, width: int, *, stride: int = 1, project: bool = False) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = convolution(inputs, width, 1)
        self.bn1 = batch_norm(width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn2 = batch_norm(width)
        self.conv3 = convolution(width, outputs, 1)
        self.bn3 = batch_norm(outputs)
        self.shortcut = projection(inputs, outputs, stride) if project else nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + self.shortcut(x))


def _stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(inputs, width, stride=stride, project=True)
    return nn.Sequential(first, *(Bottleneck(EXPANSION * width, width) for _ in range(blocks - 1)))


class ImageNetResNet(nn.Module):
    """A 7x7 convolution and a pool, four stages whose width doubles, a dense layer; 224x224 images."""

    def __init__(self, blocks: tuple[int, int, int, int], width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = convolution(3, width, 7, stride=2)
        self.bn1 = batch_norm(width)
        self.stage1 = _stage(width, width, blocks[0], stride=1)
        self.stage2 = _stage(EXPANSION * width, 2 * width, blocks[1], stride=2)
        self.stage3 = _stage(EXPANSION * 2 * width, 4 * width, blocks[2], stride=2)
        self.stage4 = _stage(EXPANSION * 4 * width, 8 * width, blocks[3], stride=2)
        self.fc = nn.Linear(EXPANSION * 8 * width, classes)
        resnet_(self)
        _silence_residual_branches_(self)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.stage4(self.stage3(self.stage2(self.stage1(x))))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


def _silence_residual_branches_(model: nn.Module) -> None:
    # The paper starts the last batch norm of every block at zero, so that each block begins as its shortcut.
    for module in model.modules():
        if isinstance(module, Bottleneck):
            nn.init.zeros_(module.bn3.weight)


def resnet50(width: int = 64, classes: int = 1000) -> ImageNetResNet:
    """Build ResNet-50; ``width`` is that of the first convolution."""
    return ImageNetResNet((3, 4, 6, 3), width, classes)


def resnet152(width: int = 64, classes: int = 1000) -> ImageNetResNet:
    """Build ResNet-152."""
    return ImageNetResNet((3, 8, 36, 3), width, classes)


def wide_resnet50(width: int = 128, classes: int = 1000) -> ImageNetResNet:
    """Build WideResNet-50: ResNet-50 with every width doubled, those between the blocks too."""
    return ImageNetResNet((3, 4, 6, 3), width, classes)
