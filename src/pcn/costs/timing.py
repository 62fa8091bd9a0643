"""How long a training step, forward and backward, takes on this device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pcn.errors import ConfigError
from pcn.running.trees import tensors_in

REPEATS = 5
LONG_S, MOST = 0.02, 50  # seconds over which a step is repeated, and how often at most


def step_ns(forward: Callable[[], Any], wanted: Sequence[Tensor], device: torch.device, *, capture: bool = True) -> int:
    """The shortest of a few steps to the gradients of ``wanted``; on a GPU without the time of launching, if captured.

    With nothing wanted, or outputs that take no gradients, it is the way forward alone; what is frozen wants none.
    """
    wanted = [tensor for tensor in wanted if tensor.requires_grad]
    coming = [_noise(leaf) for leaf in _differentiable(forward())] if wanted else []

    def step() -> None:
        # As in training every step casts its weights anew; copies of an earlier one would stay with its stream.
        torch.clear_autocast_cache()
        outputs = forward()
        if coming:
            torch.autograd.grad(_differentiable(outputs), wanted, coming, allow_unused=True)

    if device.type != "cuda":
        step()
        return round(1e9 * _shortest_s(step))
    with torch.cuda.device(device):  # of streams and events
        return round(1e9 * (_replayed_s(step) if capture else _launched_s(step)))


def _noise(like: Tensor) -> Tensor:
    """Numbers that take nothing from the stream of random ones that training uses."""
    generator = torch.Generator(like.device).manual_seed(0)
    return torch.randn(like.shape, generator=generator, device=like.device).to(like)


def _shortest_s(step: Callable[[], None]) -> float:
    """Short steps are repeated more often: other work on the machine disturbs them more."""
    times = [_seconds(step) for _ in range(REPEATS)]
    times += [_seconds(step) for _ in range(min(MOST, int(LONG_S / min(times)) - REPEATS))]
    return min(times)


def _differentiable(outputs: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]


def model_step_ns(forward: Callable[[], Any], wanted: Sequence[Tensor], device: torch.device) -> int:
    """The same for a whole model; one that cannot be captured is timed with its launches."""
    if not _differentiable(forward()):
        raise ConfigError(
            "the model's outputs hold no tensor that takes gradients, so there is no training step to time: train some "
            "of it, or say what it puts out with forward=lambda model, batch: model(batch).logits or the like"
        )
    try:
        return step_ns(forward, wanted, device)
    except RuntimeError:  # what a capture raises for code that waits for the GPU
        if device.type != "cuda":
            raise
        torch.cuda.synchronize(device)
        return step_ns(forward, wanted, device, capture=False)


def _seconds(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def _replayed_s(step: Callable[[], None]) -> float:
    """The shortest of a few replays of a captured step."""
    side = side_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side), _random_numbers_of_its_own():
        for _ in range(3):
            step()
        with torch.cuda.graph(graph, stream=side):
            step()
        taken = _launched_s(graph.replay)
    torch.cuda.current_stream().wait_stream(side)
    return taken


@cache
def side_stream(device: int) -> torch.cuda.Stream:
    """One for all that runs before a capture: cuBLAS keeps memory of its own for every stream that it has worked on."""
    return torch.cuda.Stream(device)


@contextmanager
def _random_numbers_of_its_own() -> Iterator[None]:
    """Draw random numbers from a copy of the state: a capture that fails leaves what it draws from unusable."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    kept = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(kept)


def _launched_s(step: Callable[[], None]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(REPEATS + 1):
        begin.record()
        step()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return float(min(times[1:]))
