"""The peak of memory is that of training steps: neither of the data, nor of what makes them or chooses kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pcn.training import Settings, Trainer, load_data, meter, world
from pcn.training.step import Step, training_dtype


@pytest.fixture(autouse=True)
def _the_network_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


class Allocator:
    """Stands in for a GPU's: what is held, and the most since that was last asked."""

    def __init__(self) -> None:
        self.held = self.highest = 0

    def take(self, size: int) -> None:
        self.held += size
        self.highest = max(self.highest, self.held)

    def peak(self) -> int:
        most, self.highest = self.highest, self.held
        return most


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    found = Allocator()
    monkeypatch.setattr(meter, "allocated_bytes", lambda device: found.held)
    monkeypatch.setattr(meter, "peak_bytes", lambda device: found.peak())
    return found


class HeldData:
    """Data that take a lot while an epoch of them is made and less afterwards, which they give back in the end."""

    def __init__(self, data: Any, allocator: Allocator) -> None:
        self._data, self._allocator = data, allocator
        allocator.take(180)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def epoch(self, *arguments: Any, **keywords: Any) -> Iterator[Any]:
        self._allocator.take(1500)
        self._allocator.take(-1100)
        yield from self._data.epoch(*arguments, **keywords)
        self._allocator.take(-400)


HELD = 1000
SETTINGS = Settings(model="small_network:build", epochs=3, batch=64, learning_rate=0.01)


def peaks(allocator: Allocator, monkeypatch: pytest.MonkeyPatch, step: Callable[[Allocator, int], None]) -> list[Any]:
    """What a run says of its epochs' peaks, above what its network and optimizer hold."""
    monkeypatch.setattr(meter, "held_bytes", lambda model, optimizer: HELD)  # which the stand-in is told of once
    count = iter(range(10**6))
    usual = Step.__call__

    def stepped(self: Step, *batch: torch.Tensor) -> None:
        step(allocator, next(count))
        usual(self, *batch)

    monkeypatch.setattr(Step, "__call__", stepped)
    data = HeldData(load_data(SETTINGS, torch.device("cpu"), torch.float32), allocator)
    told: list[dict[str, Any]] = []
    allocator.take(HELD)
    Trainer(SETTINGS, data, tell=told.append).run()
    return [record["peak_memory_bytes"] - HELD for record in told if record["event"] == "epoch"]


def test_data_are_no_part_of_a_steps_memory(allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(allocator: Allocator, number: int) -> None:
        allocator.take(50)
        allocator.take(-50)

    assert peaks(allocator, monkeypatch, step) == [50, 50, 50]


def test_a_step_that_is_replayed_took_what_it_took_while_it_was_recorded(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(allocator: Allocator, number: int) -> None:
        if number == 0:
            allocator.take(70)
            allocator.take(-70)

    assert peaks(allocator, monkeypatch, step) == [70, 70, 70]


@pytest.fixture
def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A network of eight bytes, and an optimizer without a state."""
    model = torch.nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_new_step_is_measured_anew(allocator: Allocator, trained: Any) -> None:
    allocator.take(100 + 8)
    memory = meter.StepMemory(torch.device("cpu"), *trained)
    memory.epoch_begins(*trained)
    allocator.take(40)  # the epoch's data
    memory.data_ready()
    allocator.take(500)
    allocator.take(-500)
    assert memory.most() == 508
    allocator.take(900)  # while it is compiled
    allocator.take(-900)
    memory.new_step(recorded=False)
    allocator.take(300)
    allocator.take(-300)
    assert memory.most() == 308


def test_what_others_give_back_and_libraries_take_meanwhile_does_not_mislead(
    allocator: Allocator, trained: Any
) -> None:
    allocator.take(100 + 8)
    memory = meter.StepMemory(torch.device("cpu"), *trained)
    allocator.take(-70)  # of another run, which has ended
    for expected in (8, 33):
        memory.epoch_begins(*trained)
        memory.data_ready()
        assert memory.most() == expected
        allocator.take(25)  # a workspace, which stays


def test_without_a_gpu_no_memory_is_known(trained: Any) -> None:
    memory = meter.StepMemory(torch.device("cpu"), *trained)
    memory.epoch_begins(*trained)
    memory.data_ready()
    assert memory.most() is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_lies_on_a_gpu_besides_does_not_make_steps_larger() -> None:
    found = []
    for besides in (0, 0, 2**28):  # the first run loads libraries, which take memory for themselves
        told: list[dict[str, Any]] = []
        with world() as here:
            data = load_data(SETTINGS, here.device, training_dtype(here.device))
            other = torch.zeros(besides, dtype=torch.uint8, device=here.device)
            Trainer(SETTINGS, data, world=here, tell=told.append).run()
            del other
        found.append([record["peak_memory_bytes"] for record in told if record["event"] == "epoch"])
    assert found[2] == pytest.approx(found[1], abs=2**20)
    assert all(0 < peak < 2**27 for peak in found[2])
