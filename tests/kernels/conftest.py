"""The operators, computed by their kernels: in Triton's interpreter, or on a GPU where there is one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map_only

from kernels import interpreted

CUDA = torch.cuda.is_available()
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have cuDNN multiply fp32 as it is, not as TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(scope="session")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            assert pool.submit(interpreted.takes_kernels).result()
        yield pool


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.skipif(CUDA, reason="the device itself is tested")),
        pytest.param("cuda", marks=ON_GPU),
    ]
)
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Call a function of :mod:`kernels.interpreted` with tensors on the CPU; what it returns is there too."""
    pytest.importorskip("triton")
    if request.param == "cpu":
        pool = request.getfixturevalue("interpreter")
        return lambda function, *arguments: pool.submit(function, *arguments).result()

    def on_device(function: Callable[..., Any], *arguments: Any) -> Any:
        moved = tree_map_only(torch.Tensor, _to_device, arguments)
        return tree_map_only(torch.Tensor, torch.Tensor.cpu, function(*moved))

    return on_device


def _to_device(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cuda().requires_grad_(tensor.requires_grad)


@pytest.fixture
def run(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda name, *arguments: call(interpreted.run, name, *arguments)


@pytest.fixture
def gradients(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda name, arguments, coming: call(interpreted.gradients, name, arguments, coming)
