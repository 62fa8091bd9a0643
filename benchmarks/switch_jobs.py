"""What the switch benchmark's processes do: train a parent and switch it, and set the new network's step up again."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import pcn
from pcn import models
from pcn.models.cifar_resnet import CIFARResNet
from pcn.rewriting import surgery
from pcn.rewriting.bases import find_bases
from pcn.training.compiling import Forwards, compile_parts
from pcn.training.data import ImageData
from pcn.training.images import AUGMENTATIONS, Images, Scale
from pcn.training.optimizers import make_optimizer
from pcn.training.settings import Settings
from pcn.training.step import Step, training_dtype

PAPER = {"network": "WideResNet-20", "switch_s": 3, "epoch_s": 17, "in_epochs": 3 / 17}
Result = dict[str, Any]


@dataclass(frozen=True)
class Network:
    """A network of the paper, how it is trained, and what it becomes."""

    pcn: str
    settings: Settings
    compiled: bool

    @property
    def name(self) -> str:
        return self.settings.model


NETWORKS = {
    "wide_resnet20": Network(
        "wide_resnet20-pcn1",
        Settings(model="wide_resnet20", batch=128, learning_rate=0.1, weight_decay=1e-4, augment="crop-flip"),
        compiled=True,
    ),
    "conv4": Network(
        "conv4-pcn",
        Settings(model="conv4", batch=60, optimizer="adam", learning_rate=1e-3, epsilon=1e-7),
        compiled=False,
    ),
}


@dataclass(frozen=True)
class How:
    """How a network is compiled; ``cache`` names a folder, which is empty unless an earlier process used it."""

    label: str
    cache: str
    whole: bool = False
    tuned: bool = False
    processes: int = 1
    steps_timed: bool = True


@dataclass(frozen=True)
class Setting:
    device: str
    tiny: bool
    backend: str
    folder: Path  # for caches
    processes: int | None = None  # in place of those of each way

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    def pick(self, full: int, tiny: int) -> int:
        return tiny if self.tiny else full


def cache_folder(setting: Setting, network: Network, how: How) -> Path:
    return setting.folder / network.name / how.cache


def work(
    sender: Any, task: Callable[..., Iterator[Result]], setting: Setting, network: Network, how: How, *more: Any
) -> None:
    os.setsid()  # so that compiling processes end with this one
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder(setting, network, how))
    os.environ.pop("TRITON_CACHE_DIR", None)  # it lies in the folder above
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(how.processes)
    import torch._inductor.config

    torch._inductor.config.compile_threads = how.processes  # should something have been imported already
    for report in task(setting, network, how, *more):
        sender.send(report)


def train_and_switch(setting: Setting, network: Network, how: How) -> Iterator[Result]:
    """Train the parent, switch, set the step up again and train on; each part in seconds and in the parent's epochs."""
    yield machine(setting)
    data, model = make_data(setting, network), make_parent(setting, network)
    optimizer = make_optimizer(model, network.settings, graphed=setting.cuda)
    batch = next(data.epoch(1, batch=network.settings.batch, seed=0))
    step, times = set_up_step(setting, model, optimizer, batch, how if network.compiled else None)
    parent = {"compiled": network.compiled, **times, **epoch(setting, network, step, data)}
    del step
    yield {"parent": parent, "paper": PAPER}
    plan, parts = switch_(setting, network, model, optimizer, data)
    layout_(model, setting)
    switch_s, epoch_s = sum(parts.values()), parent["epoch_s"]
    yield {"switch": in_epochs({**parts, "total_s": switch_s}, epoch_s), "plan": {network.name: plan.to_json()}}
    step, eager = set_up_step(setting, model, optimizer, batch, None)
    total = {**eager, "with_the_switch_s": switch_s + eager["set_up_s"]}
    yield {"eager": {**in_epochs(total, epoch_s), **epoch(setting, network, step, data)}}
    del step
    if not network.compiled:
        start_compiler(setting, how)
    step, compiled = set_up_step(setting, model, optimizer, batch, how)
    # Without the eager step above, cuDNN would have chosen its kernels in the first compiled one.
    total_s = switch_s + eager["first_eager_step_s"] + compiled["set_up_s"]
    total = in_epochs({**compiled, "with_the_switch_s": total_s}, epoch_s)
    yield {"compiled": {**description(how), **total, **epoch(setting, network, step, data)}}


def switch_(
    setting: Setting, network: Network, model: nn.Module, optimizer: Optimizer, data: ImageData
) -> tuple[pcn.Plan, dict[str, float]]:
    """Do what :class:`pcn.Switch` does, each part under its own clock; it is the first switch of this process."""
    times: dict[str, float] = {}
    config = pcn.PCNConfig(rank=0.25) if setting.tiny else models.config(network.pcn)
    clock = Clock(setting)
    stats = pcn.analyze(model, data.calibration(5000))
    times["statistics_s"] = clock.lap()
    graph = pcn.trace(model, stats.example)
    times["tracing_s"] = clock.lap()
    plan = pcn.make_plan(model, stats, config, graph=graph)
    times["plan_s"] = clock.lap()
    with ExitStack() as clocks:
        for name, part in {"follow_": "optimizer_s", "_check_runs": "check_s"}.items():
            clocks.enter_context(under_clock(setting, surgery, name, times, part))
        bases = find_bases(plan, stats, model)
        surgery.apply_plan_(plan, model, bases, example=stats.example, optimizer=optimizer)
    times["surgery_s"] = clock.lap() - times["optimizer_s"] - times["check_s"]
    return plan, times


@contextmanager
def under_clock(setting: Setting, module: Any, name: str, times: dict[str, float], part: str) -> Iterator[None]:
    """Note how long a function takes that another one calls."""
    function = getattr(module, name)

    def timed(*arguments: Any, **keywords: Any) -> Any:
        clock = Clock(setting)
        result = function(*arguments, **keywords)
        times[part] = clock.lap()
        return result

    with mock.patch.object(module, name, timed):
        yield


def compile_again(setting: Setting, network: Network, how: How, plan: str) -> Iterator[Result]:
    """Set the switched network's step up in a process that has compiled nothing yet, and see that it trains alike."""
    data, model = make_data(setting, network), make_parent(setting, network)
    pcn.Plan.from_json(plan).reshape_(model)
    layout_(model, setting)
    optimizer = make_optimizer(model, network.settings, graphed=setting.cuda)
    begin = [tensor.detach().clone() for tensor in tensors(model)]
    batch = next(data.epoch(1, batch=network.settings.batch, seed=0))
    eager, _ = set_up_step(setting, model, optimizer, batch, None)  # cuDNN chooses its kernels
    expected = first_loss(setting, eager, begin, data, network)
    clock = Clock(setting)
    start_compiler(setting, how)
    compiler_s = clock.lap()
    step, times = set_up_step(setting, model, optimizer, batch, how)
    losses = {
        "loss_of_first_steps": first_loss(setting, step, begin, data, network),
        "loss_of_first_steps_eager": expected,
    }
    timed = epoch(setting, network, step, data) if how.steps_timed else {}
    result = {**description(how), "starting_the_compiler_s": compiler_s, **times, **losses, **timed}
    yield {"compilation": {how.label: result}}


def start_compiler(setting: Setting, how: How) -> None:
    """Load the compiler and start its processes, which the parent's compilation has done when a real run switches."""
    small = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).to(setting.device)
    compiled = torch.compile(small.forward, backend=setting.backend)
    compiled(torch.zeros(2, 3, 8, 8, device=setting.device)).sum().backward()
    if how.processes > 1 and setting.cuda:
        from torch._inductor.async_compile import AsyncCompile

        AsyncCompile.wait_pool_ready()


@torch.no_grad()
def first_loss(setting: Setting, step: Step, begin: list[Tensor], data: ImageData, network: Network) -> float:
    """The mean loss of a few steps from the same weights, to be compared between ways of compiling."""
    torch._foreach_copy_(tensors(step.model), begin)
    for state in step.optimizer.state.values():
        for value in state.values():
            value.zero_()
    step.loss_sum.zero_()
    count = setting.pick(20, 2)
    with torch.enable_grad():
        for batch in islice(data.epoch(1, batch=network.settings.batch, seed=0), count):
            step(*batch)
    return float(step.loss_sum) / count


def tensors(model: nn.Module) -> list[Tensor]:
    return [*(p.detach() for p in model.parameters()), *model.buffers()]


class TimedStep(Step):
    """A step compiled in one of several ways, which notes how long each of its runs took outside of a capture."""

    def __init__(self, setting: Setting, how: How | None, *arguments: Any) -> None:
        self.setting, self.how = setting, how
        self.runs_s: list[float] = []
        super().__init__(*arguments, compiled=how is not None, graphed=setting.cuda)

    def _compile(self) -> Forwards:
        assert self.how is not None
        return compile_parts(self.model, whole=self.how.whole, tuned=self.how.tuned, backend=self.setting.backend)

    def _run(self) -> None:
        if self.setting.cuda and torch.cuda.is_current_stream_capturing():
            return super()._run()
        clock = Clock(self.setting)
        super()._run()
        self.runs_s.append(clock.lap())


def set_up_step(
    setting: Setting, model: nn.Module, optimizer: Optimizer, batch: tuple[Tensor, Tensor], how: How | None
) -> tuple[TimedStep, dict[str, float]]:
    """Make a step; its first run compiles, or has cuDNN choose kernels for new shapes; the rest is the capture."""
    clock = Clock(setting)
    step = TimedStep(setting, how, model, optimizer, *batch)
    if not setting.cuda:
        step(*batch)
    total_s = clock.lap()
    first = "first_eager_step_s" if how is None else "compilation_s"
    return step, {first: step.runs_s[0], "capture_s": total_s - step.runs_s[0], "set_up_s": total_s}


def epoch(setting: Setting, network: Network, step: Step, data: ImageData) -> Result:
    """Time one epoch: on a GPU all of it, otherwise a few steps."""
    batch, all_steps = network.settings.batch, data.steps(network.settings.batch)
    count = all_steps if setting.cuda and not setting.tiny else min(all_steps, setting.pick(20, 2))
    for images, labels in islice(data.epoch(1, batch=batch, seed=0), 10 if setting.cuda else 1):
        step(images, labels)
    clock = Clock(setting)
    for images, labels in islice(data.epoch(2, batch=batch, seed=0), count):
        step(images, labels)
    taken_s = clock.lap()
    return {"epoch_s": taken_s * all_steps / count, "steps": all_steps, "of_which_timed": count}


class Clock:
    """Seconds since the last lap, work on the device included."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.last = self._now()

    def lap(self) -> float:
        before, self.last = self.last, self._now()
        return self.last - before

    def _now(self) -> float:
        if self.setting.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def in_epochs(times: dict[str, float], epoch_s: float) -> Result:
    """Seconds, and beside them the same in epochs of the parent."""
    return {**times, "in_epochs": {part.removesuffix("_s"): value / epoch_s for part, value in times.items()}}


def make_parent(setting: Setting, network: Network) -> nn.Module:
    torch.backends.cudnn.benchmark = setting.cuda  # as in training
    torch.manual_seed(0)
    if setting.tiny and network.name == "wide_resnet20":
        model: nn.Module = CIFARResNet(blocks=2, width=4)
    else:
        model = models.build(network.pcn)
    return layout_(model.to(setting.device), setting)


def layout_(model: nn.Module, setting: Setting) -> nn.Module:
    return model.to(memory_format=torch.channels_last) if setting.cuda else model


def make_data(setting: Setting, network: Network) -> ImageData:
    """As many random images as CIFAR-10's training set has without 5,000 for validation, as bytes on the device."""
    generator = torch.Generator(setting.device).manual_seed(0)
    count = setting.pick(45_000, 300)
    pixels = torch.randint(256, (count, 32, 32, 3), dtype=torch.uint8, device=setting.device, generator=generator)
    labels = torch.randint(10, (count,), device=setting.device, generator=generator)
    images = Images(pixels, labels)
    dtype = training_dtype(torch.device(setting.device))
    return ImageData(images, images, images, Scale.unit(images), AUGMENTATIONS[network.settings.augment], dtype)


def description(how: How) -> Result:
    return {
        "parts": "the whole model" if how.whole else "block by block where blocks are alike",
        "pointwise_kernels": "tuned" if how.tuned else "in their first configuration",
        "compiling_processes": how.processes,
    }


def machine(setting: Setting) -> Result:
    return {
        "device": torch.cuda.get_device_name() if setting.cuda else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "pcn": pcn.__version__,
        "precision": "bf16 autocast, weights fp32" if setting.cuda else "fp32",
        "layout": "channels last" if setting.cuda else "contiguous",
        "images": "generated, on the device",
        "backend": setting.backend,
    }
