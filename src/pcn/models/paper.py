"""The paper's networks by name, and for each PCN of the paper its parent and its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pcn.config import LayerRule, PCNConfig
from pcn.errors import ConfigError, suggest
from pcn.models.cifar_resnet import resnet20, resnet110, wide_resnet20
from pcn.models.conv4 import conv4
from pcn.models.imagenet_resnet import resnet50, resnet152, wide_resnet50
from pcn.models.mnist import mnist_network
from pcn.models.vgg import vgg19

MNIST, CIFAR, IMAGENET = (1, 28, 28), (3, 32, 32), (3, 224, 224)


@dataclass(frozen=True)
class PaperNetwork:
    """How to build a network and the shape of one of its inputs; for a PCN the parent's, and the configuration."""

    factory: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    config: PCNConfig | None = None


def _only(layers: Mapping[str, LayerRule], exclude: tuple[str, ...] = ()) -> PCNConfig:
    # The paper transforms exactly the layers that it names, also where that makes a layer larger.
    return PCNConfig(rank=None, layers=layers, exclude=exclude, skip_larger=False)


def _ranks(**ranks: int) -> dict[str, LayerRule]:
    return {name: LayerRule(rank=rank) for name, rank in ranks.items()}


CONV4_PCN = _only(
    {
        "conv1": LayerRule(keep_outputs=40),
        "conv2": LayerRule(rank=20, keep_outputs=50),
        "conv3": LayerRule(rank=40, keep_outputs=100),
        "conv4": LayerRule(rank=80, keep_outputs=60),
        "fc1": LayerRule(rank=50, keep_outputs=90),
        "fc2": LayerRule(rank=40, keep_outputs=180),
        "output": LayerRule(rank=30),
    }
)

# A stage's first convolution and its shortcut read the stage before, so their rank is that stage's: always a quarter
# of the input's width, which is the width of the same input in ResNet-20.
_STAGE1 = {"stage1.*": LayerRule(rank=16)}
_STAGE2_ENTRY = {"stage2.0.conv1": LayerRule(rank=16), "stage2.0.shortcut.conv": LayerRule(rank=16)}
_STAGE2 = {"stage2.*": LayerRule(rank=32)}
_STAGE3_ENTRY = {"stage3.0.conv1": LayerRule(rank=32), "stage3.0.shortcut.conv": LayerRule(rank=32)}
_STAGE3 = {"stage3.*": LayerRule(rank=64)}
_STAGE3_PRUNED = {
    "stage3.0.conv1": LayerRule(rank=32, keep_outputs=64),
    "stage3.0.shortcut.conv": LayerRule(rank=32, keep_outputs=64),
    "stage3.*": LayerRule(rank=64, keep_outputs=64),
}
WIDE_RESNET20_PCN0 = _only({**_STAGE2, **_STAGE3, **_STAGE3_ENTRY}, exclude=tuple(_STAGE2_ENTRY))
WIDE_RESNET20_PCN1 = _only({**_STAGE1, **_STAGE2, **_STAGE2_ENTRY, **_STAGE3, **_STAGE3_ENTRY})
WIDE_RESNET20_PCN2 = _only({**_STAGE1, **_STAGE2, **_STAGE2_ENTRY, **_STAGE3_PRUNED, **_ranks(fc=64)})
VGG19_PCN = _only(_ranks(fc1=350, fc2=400))
WIDE_RESNET50_PCN = _only({"stage4.*": LayerRule(rank=512)})

NETWORKS: dict[str, PaperNetwork] = {
    "mnist_network": PaperNetwork(mnist_network, MNIST),
    "conv4": PaperNetwork(conv4, CIFAR),
    "conv4-pcn": PaperNetwork(conv4, CIFAR, CONV4_PCN),
    "resnet20": PaperNetwork(resnet20, CIFAR),
    "resnet110": PaperNetwork(resnet110, CIFAR),
    "wide_resnet20": PaperNetwork(wide_resnet20, CIFAR),
    "wide_resnet20-pcn0": PaperNetwork(wide_resnet20, CIFAR, WIDE_RESNET20_PCN0),
    "wide_resnet20-pcn1": PaperNetwork(wide_resnet20, CIFAR, WIDE_RESNET20_PCN1),
    "wide_resnet20-pcn2": PaperNetwork(wide_resnet20, CIFAR, WIDE_RESNET20_PCN2),
    "vgg19": PaperNetwork(vgg19, IMAGENET),
    "vgg19-pcn": PaperNetwork(vgg19, IMAGENET, VGG19_PCN),
    "resnet50": PaperNetwork(resnet50, IMAGENET),
    "resnet152": PaperNetwork(resnet152, IMAGENET),
    "wide_resnet50": PaperNetwork(wide_resnet50, IMAGENET),
    "wide_resnet50-pcn": PaperNetwork(wide_resnet50, IMAGENET, WIDE_RESNET50_PCN),
}


def names() -> list[str]:
    """Return the names that the functions below know.

    >>> names()[:3]
    ['mnist_network', 'conv4', 'conv4-pcn']
    """
    return list(NETWORKS)


def build(name: str) -> nn.Module:
    """Build a network with fresh weights; for a PCN its parent, which :func:`config` says how to transform."""
    return _network(name).factory()


def config(name: str) -> PCNConfig | None:
    """Return the paper's configuration of a PCN; None for a plain network.

    >>> config("conv4-pcn").layers["fc1"].rank
    50
    """
    return _network(name).config


def example(name: str, batch: int = 2) -> Tensor:
    """Return random images of the shape that a network reads, on the default device."""
    return torch.randn(batch, *_network(name).input_shape)


def _network(name: str) -> PaperNetwork:
    if name not in NETWORKS:
        hint = suggest(name, NETWORKS) or f"; choose one of {', '.join(NETWORKS)}"
        raise ConfigError(f"no network is called {name!r}{hint}")
    return NETWORKS[name]
