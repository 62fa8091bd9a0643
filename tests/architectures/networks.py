"""Small networks in plain torch whose channels meet in the ways of well-known architectures."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def convolution(inputs: int, outputs: int, size: int = 3, **options: int) -> nn.Sequential:
    """A convolution that keeps the size of an image, batch norm and ReLU."""
    conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class ResNetLike(nn.Module):
    """Two residual blocks, the second with a strided shortcut, and a dense layer after a flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = convolution(3, 8)
        self.first = nn.Sequential(convolution(8, 8), nn.Conv2d(8, 8, 3, padding=1))
        self.second = nn.Sequential(convolution(8, 12, stride=2), nn.Conv2d(12, 12, 3, padding=1))
        self.shortcut = nn.Conv2d(8, 12, 1, stride=2)
        self.dense = nn.Linear(12 * 4 * 4, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        x = F.relu(x + self.first(x))
        x = F.relu(self.shortcut(x) + self.second(x))
        return self.dense(F.adaptive_avg_pool2d(x, 4).flatten(1))


class DenseNet(nn.Module):
    """Every layer reads the concatenation of all before it."""

    def __init__(self, growth: int = 6, depth: int = 3) -> None:
        super().__init__()
        self.stem = convolution(3, 8)
        widths = [8 + growth * i for i in range(depth + 1)]
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[:-1])
        self.layers = nn.ModuleList(nn.Conv2d(width, growth, 3, padding=1, bias=False) for width in widths[:-1])
        self.transition = nn.Sequential(convolution(widths[-1], 12, 1), nn.AvgPool2d(2))
        self.dense = nn.Linear(12, 5)

    def forward(self, images: Tensor) -> Tensor:
        features = [self.stem(images)]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            features.append(layer(F.relu(norm(torch.cat(features, 1)))))
        return self.dense(self.transition(torch.cat(features, 1)).mean((2, 3)))


class ShuffleUnit(nn.Module):
    """Half of the channels pass through a branch, then both halves are interleaved."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        depthwise = nn.Conv2d(half, half, 3, padding=1, groups=half)
        self.branch = nn.Sequential(convolution(half, half, 1), depthwise, convolution(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        x = torch.cat([left, self.branch(right)], 1)
        samples, channels, height, width = x.shape
        return x.view(samples, 2, channels // 2, height, width).transpose(1, 2).reshape(x.shape)


class ShuffleNet(nn.Module):
    """Two shuffled units and a grouped convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = convolution(3, 32, stride=2)
        self.units = nn.Sequential(ShuffleUnit(32), ShuffleUnit(32))
        self.grouped = convolution(32, 12, groups=2)
        self.dense = nn.Linear(12, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.dense(self.grouped(self.units(self.stem(images))).mean((2, 3)))


class UNet(nn.Module):
    """Down and up again, with the features of the way down put beside those of the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = convolution(3, 8), convolution(8, 12)
        self.middle = convolution(12, 16)
        self.up2, self.up1 = convolution(16 + 12, 12), convolution(12 + 8, 8)
        self.upsample = nn.ConvTranspose2d(16, 16, 2, stride=2)
        self.output = nn.Conv2d(8, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        first = self.down1(images)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.upsample(self.middle(F.max_pool2d(second, 2)))
        x = self.up2(torch.cat([x, second], 1))
        x = F.interpolate(x, scale_factor=2, mode="bilinear")
        return self.output(self.up1(torch.cat([x, first], 1)))


class LanguageLSTM(nn.Module):
    """Embedding, a recurrent layer, two dense ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.recurrent = nn.LSTM(8, 12, num_layers=2, batch_first=True)
        self.hidden = nn.Linear(12, 16)
        self.output = nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(tokens))
        return self.output(F.gelu(self.hidden(states)))


class SelfAttention(nn.Module):
    """torch's own attention between layers that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.entry = nn.Linear(16, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.hidden, self.output = nn.Linear(16, 24), nn.Linear(24, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.entry(self.embedding(tokens))
        x = x + self.attention(x, x, x)[0]
        return self.output(F.gelu(self.hidden(x)).mean(1))


class TokenEncoder(nn.Module):
    """torch's own transformer, which reads the weights of its layers directly."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.output = nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.encoder(self.embedding(tokens)).mean(1))
