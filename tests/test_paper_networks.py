"""The paper's networks, really transformed: the function at full rank, the PCNs' sizes, the coupling of a stage."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor, nn

import pcn
from architectures.architecture import calibrate_, shake_
from architectures.prepare import difference
from pcn import models
from pcn.costs.count import Cost, count
from pcn.models.vgg import VGG
from pcn.rewriting.bases import Basis
from pcn.rewriting.surgery import apply_plan_

SIZES = {
    "conv4-pcn": Cost(trainable=101_810, total=317_910),
    "wide_resnet20-pcn0": Cost(trainable=1_323_850, total=1_443_018),
    "wide_resnet20-pcn1": Cost(trainable=1_094_154, total=1_223_114),
    "wide_resnet20-pcn2": Cost(trainable=473_802, total=541_834),
}


@dataclass(frozen=True)
class Case:
    """A network, the shape of its images, and layers that would take too long here."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    exclude: tuple[str, ...] = ()

    def build(self, dtype: torch.dtype, samples: int) -> tuple[nn.Module, Tensor]:
        """Build the network with weights that are not as it starts with, and images for it."""
        model, images = self.make(), torch.randn(samples, *self.shape)
        shake_(model)
        calibrate_(model, {"images": images})
        return model.to(dtype).eval(), images.to(dtype)


NARROW = {
    "mnist_network": Case(lambda: models.mnist_network(width=40), (1, 28, 28)),
    "conv4": Case(models.conv4, (3, 32, 32), exclude=("fc1",)),
    "conv4 and its fc1": Case(models.conv4, (3, 32, 32)),
    "resnet20": Case(models.resnet20, (3, 8, 8)),
    "resnet110": Case(lambda: models.resnet110(width=4), (3, 8, 8)),
    "wide_resnet20": Case(lambda: models.wide_resnet20(width=32), (3, 8, 8)),
    "vgg19": Case(lambda: VGG(((4, 2), (4, 2), (8, 4), (8, 4), (4, 4)), 10), (3, 224, 224), ("fc2", "output")),
    "resnet50": Case(lambda: models.resnet50(width=4, classes=10), (3, 32, 32)),
    "resnet152": Case(lambda: models.resnet152(width=2, classes=10), (3, 32, 32)),
    "wide_resnet50": Case(lambda: models.wide_resnet50(width=8, classes=10), (3, 32, 32)),
}
ALLOWED = {torch.float64: 1e-9, torch.float32: 1e-4}
REAL = {
    "mnist_network": Case(models.mnist_network, (1, 28, 28)),
    "conv4": Case(models.conv4, (3, 32, 32)),
    "resnet110": Case(models.resnet110, (3, 32, 32)),
    "wide_resnet20": Case(models.wide_resnet20, (3, 32, 32)),
    "vgg19": Case(models.vgg19, (3, 224, 224)),
    "resnet50": Case(models.resnet50, (3, 64, 64)),
    "resnet152": Case(models.resnet152, (3, 64, 64)),
    "wide_resnet50": Case(models.wide_resnet50, (3, 64, 64)),
}


@torch.no_grad()
def run(model: nn.Module, images: Tensor) -> list[Tensor]:
    return [model(images)]


def precisions() -> list[ParameterSet]:
    """Every network in both precisions; of the deep ones one each in a normal run."""
    slow = {("resnet110", torch.float32), ("resnet50", torch.float64), ("wide_resnet50", torch.float32)}
    slow |= {(name, dtype) for name in ("resnet152", "conv4 and its fc1") for dtype in ALLOWED}
    return [
        pytest.param(
            name, dtype, allowed, id=f"{name}-{dtype}", marks=pytest.mark.slow if (name, dtype) in slow else ()
        )
        for name in NARROW
        for dtype, allowed in ALLOWED.items()
    ]


@pytest.mark.parametrize(("name", "dtype", "allowed"), precisions())
def test_full_rank_leaves_the_function_unchanged(name: str, dtype: torch.dtype, allowed: float) -> None:
    case = NARROW[name]
    model, images = case.build(dtype, samples=3)
    expected = run(model, images)
    assert difference([expected[0][:1]], [expected[0][1:2]]) > 1e-2
    stats = pcn.analyze(model, [images])
    config = pcn.PCNConfig(rank=1.0, skip_larger=False, exclude=case.exclude)
    plan = pcn.make_plan(model, stats, config).apply_(model, stats)
    assert {layer.name for layer in plan.layers.values() if layer.rank is None} == set(case.exclude)
    assert difference(run(model, images), expected) < allowed


def any_basis(width: int) -> Basis:
    """A random mean, and as full basis the unit vectors, mirrored in a random plane."""
    normal = nn.functional.normalize(torch.randn(width, dtype=torch.float64), dim=0)
    mirrored = torch.eye(width, dtype=torch.float64).addr_(normal, normal, alpha=-2)
    ones = torch.ones(1, width, dtype=torch.float64)
    return Basis(torch.randn(width, dtype=torch.float64), mirrored, ones, ones.sum(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_any_full_basis_leaves_the_real_network_unchanged(name: str) -> None:
    torch.manual_seed(0)
    model, images = REAL[name].build(torch.float32, samples=2)
    expected = run(model, images)
    plan = pcn.make_plan(model, None, pcn.PCNConfig(rank=1.0, skip_larger=False), example=images)
    apply_plan_(plan, model, {layer.name: any_basis(layer.in_features) for layer in plan.layers.values()})
    assert all(layer.rank == layer.in_features for layer in plan.layers.values())
    assert difference(run(model, images), expected) < 1e-4


@pytest.fixture(scope="module")
def wide_resnet() -> tuple[nn.Module, Tensor, pcn.Statistics]:
    torch.manual_seed(0)
    model, images = Case(models.wide_resnet20, (3, 32, 32)).build(torch.float32, samples=4)
    return model, images, pcn.analyze(model, [images])


@pytest.mark.parametrize("name", ["wide_resnet20-pcn0", "wide_resnet20-pcn1", "wide_resnet20-pcn2"])
def test_wide_resnet_has_the_papers_size_in_the_bases_of_its_data(
    name: str, wide_resnet: tuple[nn.Module, Tensor, pcn.Statistics]
) -> None:
    original, images, stats = wide_resnet
    model = copy.deepcopy(original)
    pcn.make_plan(model, stats, models.config(name)).apply_(model, stats)
    assert count(model) == SIZES[name]
    assert run(model, images)[0].isfinite().all()
    kept = stats.basis("stage3.1.conv2", 64)
    if name == "wide_resnet20-pcn2":
        kept = kept[list(pcn.get_plan(model).kept("stage3.1.conv2.weight", 1))]
    torch.testing.assert_close(model.get_submodule("stage3.1.conv2").basis.double(), kept, atol=1e-6, rtol=0)


def test_stage_three_keeps_what_the_bases_after_it_weigh_most(
    wide_resnet: tuple[nn.Module, Tensor, pcn.Statistics],
) -> None:
    model, _, stats = wide_resnet
    plan = pcn.make_plan(model, stats, models.config("wide_resnet20-pcn2"))

    def rows(reader: str) -> Tensor:
        varying = int((stats.spectrum(reader).leading(64)[0] > 0).sum())  # few, where there are but four samples
        return stats.basis(reader, varying).abs().sum(1)

    def best(*readers: str) -> tuple[int, ...]:
        scores = torch.stack([rows(reader) for reader in readers]).mean(0)
        return tuple(sorted(scores.argsort(descending=True, stable=True)[:64].tolist()))

    # The sum of every block is read by the next block's first convolution, the last one by the dense layer.
    together = best("stage3.1.conv1", "stage3.2.conv1", "fc")
    meeting = ["stage3.0.conv2", "stage3.0.shortcut.conv", "stage3.1.conv2", "stage3.2.conv2"]
    assert all(plan.kept(f"{name}.weight", 0) == together for name in meeting)
    norms = ["stage3.0.bn2", "stage3.0.shortcut.bn", "stage3.1.bn2", "stage3.2.bn2"]
    tensors = ("weight", "bias", "running_mean", "running_var")
    assert all(plan.kept(f"{name}.{tensor}", 0) == together for name in norms for tensor in tensors)
    assert all(plan.kept(f"{name}.weight", 1) == together for name in ("stage3.1.conv1", "stage3.2.conv1", "fc"))
    for block in range(3):  # inside a block nothing is shared
        assert plan.kept(f"stage3.{block}.conv1.weight", 0) == best(f"stage3.{block}.conv2")


def test_conv4_pcn_has_the_papers_size_in_the_bases_of_its_data() -> None:
    model, images = models.conv4().eval(), torch.rand(60, 3, 32, 32)
    stats = pcn.analyze(model, [images])
    plan = pcn.make_plan(model, stats, models.config("conv4-pcn")).apply_(model, stats)
    assert count(model) == SIZES["conv4-pcn"]
    assert run(model, images)[0].isfinite().all()
    # A filter of the last convolution is worth the sum of the 8 x 8 rows that the flatten makes of it.
    scores = stats.basis("fc1", 50).abs().sum(1).reshape(128, 64).sum(1)
    assert plan.kept("conv4.weight", 0) == tuple(sorted(scores.argsort(descending=True, stable=True)[:60].tolist()))
    assert model.get_submodule("fc1").in_features == 60 * 64
