"""On a GPU a fused network trains as the unfused one does, compiled and captured, and needs less memory."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import pcn
from pcn.fusion import fuse_
from pcn.models.cifar_resnet import CIFARResNet
from pcn.training.step import Step, autocast

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # torch's own, of any block that is compiled by itself
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
]
STEPS = 20


CONFIGS = {  # a quarter of what is trained, as directions, or as directions in patterns of taps
    "directions": pcn.PCNConfig(rank=0.25, exclude=("conv1", "fc")),
    "patterns": pcn.PCNConfig(rank=0.5, kernel_rank=4, exclude=("conv1", "fc")),
}
every_config = pytest.mark.parametrize("config", CONFIGS)


def networks(config: str) -> tuple[nn.Module, nn.Module, torch.Tensor, torch.Tensor]:
    device = torch.device("cuda")
    model = CIFARResNet(2, 64).to(device)
    images = torch.randn(256, 3, 32, 32, device=device)
    pcn.compress_(model, [images], CONFIGS[config])
    model.to(memory_format=torch.channels_last)
    twin = copy.deepcopy(model)
    images = images.bfloat16().contiguous(memory_format=torch.channels_last)
    with autocast(device):
        readers = [reader for chain in fuse_(model, images).chains for reader in chain.readers]
    assert len(readers) >= 12  # all convolutions behind a batch norm, and shortcuts where they share a projection
    return model, twin, images, torch.randint(10, (256,), device=device)


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, compiled: bool) -> tuple[list[float], int]:
    """The losses of a few steps, and the peak of memory."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    step = Step(model, optimizer, images, labels, compiled=compiled, graphed=compiled)
    losses = []
    for _ in range(STEPS):
        step.loss_sum.zero_()
        step(images, labels)
        losses.append(float(step.loss_sum))
    return losses, torch.cuda.max_memory_allocated() - before


@every_config
@pytest.mark.parametrize("compiled", [False, True])
def test_the_loss_falls_as_without_kernels(config: str, compiled: bool) -> None:
    model, twin, images, labels = networks(config)
    found, peak = train(model, images, labels, compiled=compiled)
    expected, expected_peak = train(twin, images, labels, compiled=compiled)
    assert expected[-1] < expected[0] / 2
    assert found == pytest.approx(expected, rel=0.1, abs=0.05)
    assert peak < expected_peak


@every_config
def test_one_step_is_as_exact_as_the_stock_one(config: str) -> None:
    """Against float64 the gradients of the first convolution, through all kernels, err no more than the stock ones."""
    model, twin, images, labels = networks(config)
    exact = copy.deepcopy(twin).double()
    with autocast(images.device):
        for network in (model, twin):
            nn.functional.cross_entropy(network(images), labels).backward()
    nn.functional.cross_entropy(exact(images.double()), labels).backward()
    reference = exact.conv1.weight.grad
    errors = [float((network.conv1.weight.grad - reference).norm() / reference.norm()) for network in (model, twin)]
    assert errors[0] < 1.3 * errors[1]
