"""Runs in a process of its own, where Triton's interpreter takes the kernels' place on the CPU from the start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def takes_kernels() -> bool:
    """Whether operators on the CPU run their kernels here."""
    from pcn.kernels.dispatch import uses_kernel

    return uses_kernel(torch.ones(1, 1))


def run(name: str, *arguments: Any) -> Any:
    """Call an operator."""
    from pcn import kernels

    return getattr(kernels, name)(*arguments)


def gradients(name: str, arguments: tuple[Any, ...], coming: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    """What autograd finds for the arguments that require gradients, given those of the outputs."""
    from pcn import kernels

    given = [a.detach().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in arguments]
    outputs = getattr(kernels, name)(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    pairs = [(output, gradient) for output, gradient in zip(outputs, coming, strict=True) if gradient is not None]
    wanted = [a for a in given if isinstance(a, Tensor) and a.requires_grad]
    found = torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
    return [None if gradient is None else gradient.detach() for gradient in found]


def largest_offset(tile: int) -> Tensor:
    """The largest offset that a kernel finds in a tile of 16 rows of 64."""
    from kernels.offsets import find_largest

    found = torch.zeros((), dtype=torch.int64, device="cuda" if torch.cuda.is_available() else "cpu")
    find_largest[(1,)](found, tile)
    return found


def fused_and_not() -> list[tuple[Tensor, Tensor]]:
    """Outputs, gradients and buffers of a fused network in training, and its evaluation, beside those of it unfused."""
    import copy

    from fusion.networks import IMAGES, Residual, transformed
    from pcn.fusion import fuse_

    torch.manual_seed(0)
    twin = transformed(Residual(), keep=("conv",)).float()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, batch = copy.deepcopy(twin), torch.randn(IMAGES)
    fuse_(model, batch)
    results = []
    for network in (model.to(device), twin.to(device)):
        output = network(batch.to(device))
        output.square().sum().backward()
        results.append([output.detach(), *(p.grad for p in network.parameters()), *network.buffers()])
        with torch.no_grad():
            results[-1].append(network.eval()(batch.to(device)))
    return list(zip(*results, strict=True))


def every_launch(name: str, *arguments: Any) -> list[Any]:
    """What each of the launches of an operator's kernels computes."""
    import pcn.kernels.ops
    from pcn.kernels.launch import CHOICES, STOCK, spread

    found: list[Any] = []
    most = 1
    while len(found) < most:

        def run(key: str, rows: int, candidates: Any, device: Any, way: Any, per_processor: Any = ()) -> Any:
            nonlocal most
            ours = [launch for launch in candidates if launch != STOCK]
            ours += spread(ours[:1], per_processor if device.type == "cuda" else ())
            most = max(most, len(ours))
            return way(ours[min(len(found), len(ours) - 1)])

        CHOICES.run = run  # type: ignore[method-assign]
        try:
            found.append(getattr(pcn.kernels.ops, name)(*arguments))
        finally:
            del CHOICES.run
    return found


def convolutions(x: Tensor, weight: Tensor, d_y: Tensor, stride: int, padding: int) -> dict[str, list[list[Tensor]]]:
    """What every launch of our kernels makes of a convolution and of its gradients."""
    from pcn.kernels import conv_launches
    from pcn.kernels.conv_kernel import convolve
    from pcn.kernels.conv_reference import geometry_of
    from pcn.kernels.conv_shift_kernel import convolve_shifted
    from pcn.kernels.conv_weight_kernel import weight_gradient
    from pcn.kernels.launch import STOCK

    geometry = geometry_of(x.shape, weight.shape, stride, padding)
    back = conv_launches.backwards(geometry)
    images, filters, coming = (each.permute(0, 2, 3, 1).contiguous() for each in (x, weight, d_y))

    def ours(of: str) -> list[Any]:
        launches = getattr(conv_launches, f"{of}_launches")(geometry, x)
        return [launch for launch in launches if launch != STOCK]

    def forward(launch: Any) -> list[Tensor]:
        y, *moments = convolve(images, filters, geometry, launch, moments=True, reversed=False)
        return [y.permute(0, 3, 1, 2), *moments]

    def backward(launch: Any) -> list[Tensor]:
        assert back is not None
        if launch.shifted:
            return [convolve_shifted(coming, filters, back, launch).permute(0, 3, 1, 2)]
        d_x, *_ = convolve(coming, filters, back, launch, moments=False, reversed=True)
        return [d_x.permute(0, 3, 1, 2)]

    def by_weight(launch: Any) -> list[Tensor]:
        return [weight_gradient(images, coming, geometry, launch).permute(0, 3, 1, 2)]

    ways = {"forward": forward, "input": backward, "weight": by_weight}
    return {name: [way(launch) for launch in ours(name)] for name, way in ways.items()}


def rows_of_launches(dynamic: bool) -> list[tuple[int, type]]:
    """For how many rows launches are chosen by a compiled function, and what these numbers are."""
    from pcn.kernels import batch_moments
    from pcn.kernels.launch import CHOICES

    seen: list[tuple[int, type]] = []
    original = CHOICES.run

    def run(key: str, rows: int, *rest: Any) -> Any:
        seen.append((rows, type(rows)))
        return original(key, rows, *rest)

    compiled = torch.compile(lambda rows: batch_moments(rows)[0] * 2, backend="aot_eager", dynamic=dynamic)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    CHOICES.run = run  # type: ignore[method-assign]
    try:
        for count in (70, 90):
            compiled(torch.randn(count, 20, device=device))
    finally:
        del CHOICES.run
        torch.compiler.reset()
    return seen
