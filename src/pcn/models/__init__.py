"""The paper's networks: one function each, and all of them by name in :mod:`pcn.models.paper`."""

from pcn.models.cifar_resnet import resnet20, resnet110, wide_resnet20
from pcn.models.conv4 import conv4
from pcn.models.imagenet_resnet import resnet50, resnet152, wide_resnet50
from pcn.models.mnist import mnist_network
from pcn.models.paper import build, config, example, names
from pcn.models.vgg import vgg19

__all__ = [
    "build",
    "config",
    "conv4",
    "example",
    "mnist_network",
    "names",
    "resnet20",
    "resnet50",
    "resnet110",
    "resnet152",
    "vgg19",
    "wide_resnet20",
    "wide_resnet50",
]
