"""Seconds and joules of a stretch of work on the device, and the memory that training takes."""

from __future__ import annotations

import ctypes
import time

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


def training_bytes(model: nn.Module, optimizer: Optimizer) -> int:
    """The bytes of weights, buffers, gradients and the optimizer's state: what training holds besides activations."""
    held = [*model.parameters(), *model.buffers(), *(p for p in model.parameters() if p.requires_grad)]
    states = (value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor))
    return sum(tensor.numel() * tensor.element_size() for tensor in [*held, *states])


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
