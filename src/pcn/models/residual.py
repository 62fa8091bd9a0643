"""What the ResNets for CIFAR-10 and ImageNet are built from."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

MOMENTUM = 0.003  # of the running statistics, in PyTorch's sense: the authors' 0.997 in TensorFlow's


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Make a convolution without a bias, padded so that stride 1 keeps the image's size."""
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


def batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-5, momentum=MOMENTUM)


def projection(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Make the shortcut of a stage's first block: a 1x1 convolution and batch norm."""
    return nn.Sequential(OrderedDict(conv=convolution(inputs, outputs, 1, stride), bn=batch_norm(outputs)))
