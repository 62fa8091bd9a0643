"""Every kernel alone, at WideResNet-20-PCN1's sizes: its time, the bytes that it must move, its share of a copy.

Beside a convolution stands the time of PyTorch's own for the same: in the forward pass that of it and of the moments.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pcn.kernels import (
    add_moments,
    batch_moments,
    conv_reference,
    narrow_conv,
    narrow_conv_input,
    narrow_conv_weight,
    norm_project,
    norm_project_backward,
    project,
)
from pcn.kernels.rows import as_rows

STAGES = [(64, 16, 1024), (128, 32, 256), (256, 64, 64)]  # width, rank, positions of an image
WIDE = [(256, 64, 1024), (512, 128, 256), (1024, 256, 64)]  # the same four times as wide
Row = dict[str, Any]
Stage = tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    """One call of an operator, how many bytes it has to move, and what PyTorch has for the same, if anything."""

    name: str
    run: Callable[[], Any]
    moved: int
    library: Callable[[], Any] | None = None
    channels: int | None = None  # that a convolution reads, if not as many as the stage's rank


def copy_bandwidth(device: torch.device, size: int = 2**30) -> float:
    """Bytes per second that a copy of a large tensor reads and writes."""
    size = size if device.type == "cuda" else 2**20
    return 2 * size / copy_s(device, size)


def copy_s(device: torch.device, size: int) -> float:
    """Seconds of a copy that reads so many bytes and writes as many."""
    source = torch.empty(max(size // 4, 1), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    copies = (lambda: target.copy_(source), lambda: torch.bitwise_not(source, out=target))  # the driver's, a kernel's
    return min(time_s(copy, device) for copy in copies)


def rows_of(device: torch.device, batch: int, stage: Stage, bandwidth: float) -> Iterator[Row]:
    """Time the kernels of one stage."""
    width, rank, positions = stage
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for case in cases(width, rank, batch * positions, device, dtype, positions):
        taken, copied = time_s(case.run, device), copy_s(device, case.moved // 2)
        yield {
            "kernel": case.name,
            "width": width,
            "rank": rank if case.channels is None else case.channels,
            "rows": batch * positions,
            "dtype": str(dtype).removeprefix("torch."),
            "time_us": taken * 1e6,
            "mib": case.moved / 2**20,
            "gb_per_s": case.moved / taken / 1e9,
            "share_of_copy": case.moved / taken / bandwidth,
            "copy_us": copied * 1e6,
        } | ({} if case.library is None else {"library_us": time_s(case.library, device) * 1e6})


def cases(
    width: int, rank: int, rows: int, device: torch.device, dtype: torch.dtype, positions: int = 64
) -> list[Case]:
    def make(columns: int) -> Tensor:
        return torch.randn(rows, columns, device=device, dtype=dtype)

    z, s, d_y, d_p = make(width), make(width), make(width), make(rank)
    norm = [torch.rand(width, device=device) + 0.5 for _ in range(4)]
    basis = torch.linalg.qr(torch.randn(width, rank, device=device))[0].to(dtype)
    wide, narrow = z.numel() * z.itemsize, d_p.numel() * d_p.itemsize
    y = torch.relu(z)
    none = (None, None)
    read = (rank, 3, width) if width == STAGES[0][0] else (rank,)  # the first stage has ordinary convolutions too
    return [
        Case("batch_moments", lambda: batch_moments(z), wide),
        Case("add_moments", lambda: add_moments(z, s), 3 * wide),
        Case("bn_relu", lambda: norm_project(z, None, *norm, *none, True, True, True), 2 * wide),
        Case("bn_relu_project", lambda: norm_project(z, None, *norm, basis, None, True, False, True), wide + narrow),
        Case(
            "bn_add_relu_project",
            lambda: norm_project(z, s, *norm, basis, None, True, True, True),
            3 * wide + narrow,
        ),
        Case("project", lambda: project(z, basis, norm[0]), wide + narrow),
        Case(
            "bn_relu_backward",
            lambda: norm_project_backward(None, d_y, z, None, None, *norm, None, True, True),
            5 * wide,
        ),
        Case(
            "bn_relu_project_backward",
            lambda: norm_project_backward(d_p, None, z, None, None, *norm, basis, True, True),
            3 * wide + 2 * narrow,
        ),
        Case(
            "bn_add_relu_project_backward",
            lambda: norm_project_backward(d_p, d_y, z, None, y, *norm, basis, True, True),
            7 * wide + narrow,
        ),
        *[
            case
            for channels in read
            for case in convolutions(width, channels, max(1, rows // positions), math.isqrt(positions), device, dtype)
        ],
    ]


def convolutions(width: int, rank: int, images: int, side: int, device: torch.device, dtype: torch.dtype) -> list[Case]:
    """Those of 3 x 3 from so many channels to a stage's full width."""

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype).permute(0, 3, 1, 2)  # channels last in memory

    x, y, weight = make(images, side, side, rank), make(images, side, side, width), make(width, 3, 3, rank)
    forth, back, same = (weight, 1, 1), (weight, side, side, 1, 1), (3, 3, 1, 1)
    moved = (x.numel() + y.numel() + weight.numel()) * x.itemsize
    return [
        Case("narrow_conv", lambda: narrow_conv(x, *forth), moved, lambda: _conv_moments(x, *forth), rank),
        Case(
            "narrow_conv_weight",
            lambda: narrow_conv_weight(x, y, *same),
            moved,
            lambda: conv_reference.narrow_conv_weight(x, y, *same),
            rank,
        ),
        Case(
            "narrow_conv_input",
            lambda: narrow_conv_input(y, *back),
            moved,
            lambda: conv_reference.narrow_conv_input(y, *back),
            rank,
        ),
    ]


def _conv_moments(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    return batch_moments(as_rows(torch.conv2d(x, weight, stride=stride, padding=padding)))


def time_s(run: Callable[[], Any], device: torch.device) -> float:
    """The median of a few runs; on a GPU ten of them are one graph, without the time of launching."""
    run()
    if device.type != "cuda":
        return statistics.median(_clocked(run) for _ in range(3))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            run()
    graph.replay()
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e4)
    return statistics.median(times)


def _clocked(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
