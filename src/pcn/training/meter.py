"""Seconds and joules of a stretch of work on the device, and the memory that training takes."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Stopwatch:
    """Tells what has passed since it was last asked: the wall clock, and the GPU's own counter of energy."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._synchronize()
        self._before_j = read_energy_j(device)
        self._since_s = time.perf_counter()

    def lap(self) -> tuple[float, float | None]:
        """Seconds and joules since the last lap; joules are None where there is no counter."""
        self._synchronize()
        taken_s = time.perf_counter() - self._since_s
        before_j, self._before_j = self._before_j, read_energy_j(self.device)
        used_j = None if self._before_j is None or before_j is None else self._before_j - before_j
        self._since_s = time.perf_counter()  # reading the counter takes milliseconds, which are nobody's
        return taken_s, used_j

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def plus(total: float | None, part: float | None) -> float | None:
    """Add, where None is a number that is not known."""
    return None if total is None or part is None else total + part


class StepMemory:
    """The most bytes that training steps take on a GPU, where what others and the data hold is no part of it.

    A step that is replayed from a graph asks for no memory: what it took while it was recorded stays its own.
    """

    def __init__(self, device: torch.device, model: nn.Module, optimizer: Optimizer) -> None:
        self.device = device
        self._others = (allocated_bytes(device) or 0) - held_bytes(model, optimizer)  # a data set that lies there whole
        self._before = self._besides = self._most = 0

    def epoch_begins(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Remember what is there before the data of an epoch are made."""
        self._before = allocated_bytes(self.device) or 0
        # What others held may have gone; what libraries took for themselves since the start is the steps' own.
        self._others = min(self._others, self._before - held_bytes(model, optimizer))

    def data_ready(self) -> None:
        """Count from now on, when the data of an epoch are on the device and what made them is gone."""
        self._besides = self._others + (allocated_bytes(self.device) or 0) - self._before
        peak_bytes(self.device)

    def new_step(self, *, recorded: bool) -> None:
        """Forget the step before; one that was ``recorded`` has taken its memory by now."""
        self._most = 0
        if not recorded:
            peak_bytes(self.device)

    def most(self) -> int | None:
        """The most that the steps since the last new one have taken; None where that is not known."""
        taken = peak_bytes(self.device)
        if taken is None:
            return None
        self._most = max(self._most, taken - self._besides)
        return self._most


def held_bytes(model: nn.Module, optimizer: Optimizer) -> int:
    """The bytes of weights, buffers and the optimizer's state: what training holds from one step to the next."""
    states = (value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor))
    return _bytes([*model.parameters(), *model.buffers(), *states])


def training_bytes(model: nn.Module, optimizer: Optimizer) -> int:
    """The bytes of weights, buffers, gradients and the optimizer's state: what training holds besides activations."""
    return held_bytes(model, optimizer) + _bytes(p for p in model.parameters() if p.requires_grad)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def allocated_bytes(device: torch.device) -> int | None:
    """The bytes that tensors take on a GPU; None elsewhere."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else None


def peak_bytes(device: torch.device) -> int | None:
    """The most bytes that tensors took on a GPU since this was last asked; None elsewhere."""
    if device.type != "cuda":
        return None
    most = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return most


def read_energy_j(device: torch.device) -> float | None:
    """Read NVML's counter of the energy that a GPU has used, or None where there is none."""
    if device.type != "cuda":
        return None
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
    calls = (
        (nvml.nvmlInit_v2,),
        (nvml.nvmlDeviceGetHandleByUUID, uuid, ctypes.byref(handle)),
        (nvml.nvmlDeviceGetTotalEnergyConsumption, handle, ctypes.byref(millijoules)),
    )
    succeeded = all(function(*arguments) == 0 for function, *arguments in calls)
    return millijoules.value / 1000 if succeeded else None
