"""The networks whose training step is timed: how each is built, what its PCN is, and the narrower one beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import pcn
from pcn import models
from pcn.config import LayerRule
from pcn.models.cifar_resnet import CIFARResNet, wide_resnet20
from pcn.models.conv4 import conv4
from pcn.models.imagenet_resnet import wide_resnet50
from pcn.models.vgg import vgg19
from pcn.training.compiling import blocks

CIFAR, IMAGENET, ROWS = (3, 32, 32), (3, 224, 224), (3072,)


@dataclass(frozen=True)
class Network:
    """A PCN by name, its parent, the narrower network if there is one, and the batches that are timed."""

    name: str
    parent: str
    build: Callable[[], nn.Module]
    narrow: Callable[[], nn.Module] | None
    config: pcn.PCNConfig | pcn.Budget | Path  # a path is that of a plan
    shape: tuple[int, ...] = CIFAR
    batches: tuple[int, ...] = (1024, 128)
    samples: int = 512  # random images whose principal components are taken

    @property
    def has_blocks(self) -> bool:
        """Whether some of its modules are alike, so that they can be compiled once for all."""
        with torch.device("meta"):
            return bool(blocks(self.build()))


def wide_mlp(width: int = 8192) -> nn.Sequential:
    sizes = (3072, width, width, width)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def scaled(config: pcn.PCNConfig, factor: int) -> pcn.PCNConfig:
    """The same fractions of a network that is some times as wide."""

    def rule(given: LayerRule) -> LayerRule:
        assert isinstance(given.rank, int)
        return replace(given, rank=given.rank * factor)

    layers: Mapping[str, LayerRule] = {name: rule(each) for name, each in config.layers.items()}
    return replace(config, layers=layers)


def in_eights(config: pcn.PCNConfig) -> pcn.PCNConfig:
    """The next larger multiples of eight, which fast convolutions in bf16 need."""

    def up(size: object) -> int | None:
        assert size is None or isinstance(size, int)
        return None if size is None else -(-size // 8) * 8

    rules = {
        name: replace(rule, rank=up(rule.rank), keep_outputs=up(rule.keep_outputs))
        for name, rule in config.layers.items()
    }
    return replace(config, layers=rules)


def _paper(name: str) -> pcn.PCNConfig:
    config = models.config(name)
    assert config is not None
    return config


def _wide(name: str, factor: int = 1, config: pcn.PCNConfig | pcn.Budget | Path | None = None) -> Network:
    width = 64 * factor
    parent = "wide_resnet20" if factor == 1 else f"wide_resnet20x{factor}"
    build, narrow = (partial(wide_resnet20, each) for each in (width, width // 2))
    return Network(name, parent, build, narrow, config or scaled(_paper(PCN1), factor))


PCN1 = "wide_resnet20-pcn1"
MLP_PCN = pcn.PCNConfig(rank=0.125, exclude=("0",))
EVENLY_IN_PATTERNS = pcn.Budget(  # as the comparison's planner has it; weights say nothing of ranks that are even
    params=1_094_154, worth=pcn.Evenly(), config=pcn.PCNConfig(kernel_rank=4, exclude=("conv1", "fc"))
)
PLANS = Path(__file__).parent / "plans"  # see the README there
IN_ORDER = [  # the most important first
    _wide(PCN1),
    _wide("wide_resnet20-pcn0", config=_paper("wide_resnet20-pcn0")),
    _wide("wide_resnet20-pcn2", config=_paper("wide_resnet20-pcn2")),
    *[_wide(plan.stem, config=plan) for plan in sorted(PLANS.glob("wide_resnet20-*.json"))],
    _wide("wide_resnet20-patterns", config=EVENLY_IN_PATTERNS),
    _wide("wide_resnet20-patterns-in-32s", config=replace(EVENLY_IN_PATTERNS, step=32)),  # as convolutions like them
    _wide("wide_resnet20x4-pcn1", factor=4),
    _wide("wide_resnet20x2-pcn1", factor=2),
    Network(
        "wide_resnet50-pcn", "wide_resnet50", wide_resnet50, partial(wide_resnet50, 64), _paper("wide_resnet50-pcn"),
        IMAGENET, (256,), 64,
    ),
    Network("vgg19-pcn", "vgg19", vgg19, partial(vgg19, 32), _paper("vgg19-pcn"), IMAGENET, (256,)),
    Network("conv4-pcn", "conv4", conv4, partial(conv4, width=32), _paper("conv4-pcn")),
    Network("conv4-pcn-in-eights", "conv4", conv4, partial(conv4, width=32), in_eights(_paper("conv4-pcn"))),
    Network("wide_mlp-pcn", "wide_mlp", wide_mlp, partial(wide_mlp, 4096), MLP_PCN, ROWS),
]  # fmt: skip
NETWORKS = {network.name: network for network in IN_ORDER}
TINY = Network(
    "tiny-pcn", "tiny", partial(CIFARResNet, 1, 8), partial(CIFARResNet, 1, 4), pcn.PCNConfig(rank=0.25),
    (3, 16, 16), (8,), 32,
)  # fmt: skip


def build(network: Network, role: str, device: torch.device) -> nn.Module:
    """Build a network's parent, the narrower one or, from random images, its PCN."""
    torch.manual_seed(0)
    make = network.narrow if role == "narrow" else network.build
    assert make is not None
    model = make().to(device)
    if role.startswith("pcn"):
        if isinstance(network.config, Path):
            pcn.Plan.from_json(network.config.read_text()).reshape_(model)
        else:
            stats = pcn.analyze(model, random_batches(network, device))
            pcn.make_plan(model, stats, network.config).apply_(model, stats)
    return model.to(memory_format=torch.channels_last)


def random_batches(network: Network, device: torch.device, batch: int = 64) -> list[Tensor]:
    return [torch.randn(batch, *network.shape, device=device) for _ in range(max(1, network.samples // batch))]
