"""ImageNet's networks and their PCNs at 224x224: images per second, peak memory, and how long the conversion takes.

    python benchmarks/imagenet.py                              all networks, within --seconds; results as JSON
    python benchmarks/imagenet.py --only resnet50 --batch 512
    python benchmarks/imagenet.py --only wide_resnet50 --pcn-alone    the parent was timed before: its part stays
    python benchmarks/imagenet.py --tiny --device cpu --out FILE    seconds, to see that it runs

Images are generated on the device; steps are those of ``pcn train --compile --fuse`` (the recipe in
experiments/imagenet, bf16 autocast, channels last, in a CUDA graph). The conversion is what the switch does: looking at
50,176 images, planning, cutting. One process per network, which is stopped when it takes too long; results are saved as
they come.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import pcn
from pcn.collectives import Ranks
from pcn.costs.count import count
from pcn.training.data import Again
from pcn.training.fusing import fuse_layers_
from pcn.training.meter import Stopwatch
from pcn.training.optimizers import make_optimizer
from pcn.training.requests import analysis_options, build_model, pcn_config
from pcn.training.settings import Settings, read_toml
from pcn.training.step import Step, training_dtype
from watched import watched

HERE = Path(__file__).parent
RESULTS, RECIPES = HERE / "results" / "imagenet.json", HERE.parent / "experiments" / "imagenet"
PAPER_SAMPLES = 50_176
NETWORKS = ("vgg19", "resnet50", "wide_resnet50")
TINY: dict[str, dict[str, Any]] = {
    "vgg19": {"model_options": {"width": 8, "dense": 64, "size": 32}, "layers": {"fc1": {"rank": 8}}},
    "resnet50": {"model_options": {"width": 8}},
    "wide_resnet50": {"model_options": {"width": 8}, "layers": {"stage4.*": {"rank": 8}}},
}
NEEDED_S = 20.0  # no network is begun for less
Result = dict[str, Any]


@dataclass(frozen=True)
class How:
    device: str
    batch: int
    samples: int
    measured_s: float  # how long steps are timed
    tiny: bool = False
    pcn_alone: bool = False

    @property
    def size(self) -> int:
        return 32 if self.tiny else 224


def main() -> None:
    given = arguments()
    how = How(given.device, given.batch, given.samples, given.measure, given.tiny, given.pcn_alone)
    started = time.monotonic()
    for name in given.only:
        left_s = given.seconds - (time.monotonic() - started)
        if left_s < NEEDED_S:
            print(f"{name} is left out: the time is up", flush=True)
            continue
        for report in watched(name, left_s, work, name, how):
            print(f"[{time.monotonic() - started:5.0f} s] {name}: {json.dumps(report)}", flush=True)
            save(given.out, name, report)


def work(sender: Any, name: str, how: How) -> None:
    os.setsid()  # so that compiling processes end with this one
    for report in measure(name, how):
        sender.send(report)


def measure(name: str, how: How) -> Iterator[Result]:
    """The parent; then, where the paper has a PCN of it, the conversion and the PCN."""
    torch.backends.cudnn.benchmark = how.device == "cuda"
    has_pcn = (RECIPES / f"{name}-pcn.toml").exists()
    settings = recipe(f"{name}-pcn" if has_pcn else name, how)
    device = torch.device(how.device)
    torch.manual_seed(0)
    yield {"machine": machine(how)}
    model = build_model(settings).to(device)
    optimizer = make_optimizer(model, settings, graphed=how.device == "cuda")
    if not (has_pcn and how.pcn_alone):
        yield {name: trained(model, optimizer, settings, how)}
    if has_pcn:
        yield {"conversion": converted(model, optimizer, settings, how)}
        yield {f"{name}-pcn": trained(model, optimizer, settings, how)}


def recipe(name: str, how: How) -> Settings:
    given = read_toml(RECIPES / f"{name}.toml")
    if how.tiny:
        given = {**given, **TINY[name.removesuffix("-pcn")]}
        given.pop("pcn", None)
    return Settings.from_mapping(given)


def trained(model: nn.Module, optimizer: Optimizer, settings: Settings, how: How) -> Result:
    """Set a training step up, time it, and see how much memory it takes."""
    cuda = how.device == "cuda"
    began = time.monotonic()
    if cuda:
        model.to(memory_format=torch.channels_last)
    inputs, labels = images(how, how.batch, training_dtype(torch.device(how.device))), torch.arange(how.batch) % 1000
    if cuda:
        fuse_layers_(model, inputs, Ranks(None))
    step = Step(
        model,
        optimizer,
        inputs,
        labels.to(how.device),
        compiled=cuda,
        graphed=cuda,
        label_smoothing=settings.label_smoothing,
    )
    step(step.inputs, step.labels)
    ready_s = time.monotonic() - began
    watch = Stopwatch(torch.device(how.device))
    steps, spent_s, energy_j = 0, 0.0, 0.0 if cuda else None
    while spent_s < how.measured_s:
        for _ in range(5):
            step(step.inputs, step.labels)
        seconds, joules = watch.lap()
        steps, spent_s = steps + 5, spent_s + seconds
        energy_j = None if energy_j is None or joules is None else energy_j + joules
    return {
        "batch": how.batch,
        "ready_s": ready_s,
        "images_per_s": steps * how.batch / spent_s,
        "step_ms": 1000 * spent_s / steps,
        "energy_j_per_image": None if energy_j is None else energy_j / (steps * how.batch),
        "steps_timed": steps,
        "peak_memory_bytes": peak_memory(step) if cuda else None,
        "trainable_params": count(model).trainable,
        "total_params": count(model).total,
    }


def peak_memory(step: Step) -> int:
    """The peak of one step outside its graph, whose memory is set apart once and for all."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step._run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def converted(model: nn.Module, optimizer: Optimizer, settings: Settings, how: How) -> Result:
    """Do what the switch does, each part under the clock."""
    config = pcn_config(settings)
    options = {**analysis_options(settings, config), "fraction": None, "layers": list(config.layers)}
    sizes = [min(how.batch, how.samples - start) for start in range(0, how.samples, how.batch)]
    watch = Stopwatch(torch.device(how.device))
    stats = pcn.analyze(model, Again(lambda: (images(how, size, torch.float32) for size in sizes)), **options)
    looking_s, _ = watch.lap()
    plan = pcn.make_plan(model, stats, config)
    planning_s, _ = watch.lap()
    plan.apply_(model, stats, optimizer=optimizer)
    cutting_s, _ = watch.lap()
    return {
        "samples": how.samples,
        "looking_s": looking_s,
        "planning_s": planning_s,
        "cutting_s": cutting_s,
        "total_s": looking_s + planning_s + cutting_s,
        "paper": "half an hour for WideResNet-50 on one V100",
    }


def images(how: How, number: int, dtype: torch.dtype) -> Tensor:
    """Smooth random images, channels last in memory: noise alone has no directions to find."""
    small = torch.randn(number, 3, how.size // 8, how.size // 8, device=how.device)
    whole = nn.functional.interpolate(small, scale_factor=8.0, mode="bilinear")
    return whole.to(dtype, memory_format=torch.channels_last)


def machine(how: How) -> Result:
    return {
        "device": torch.cuda.get_device_name() if how.device == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "pcn": pcn.__version__,
        "precision": "bf16 autocast, weights fp32" if how.device == "cuda" else "fp32",
        "images": f"generated on the device, {how.size}x{how.size}",
    }


def save(path: Path, name: str, report: Result) -> None:
    """Put a report into the results; what it does not speak of stays."""
    found = json.loads(path.read_text()) if path.exists() else {}
    reports = found.setdefault(name, {})
    reports.pop("failed", None)  # before
    reports.update(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, help="images in a step (256)")
    parser.add_argument("--samples", type=int, help=f"images that the conversion looks at ({PAPER_SAMPLES})")
    parser.add_argument("--measure", type=float, default=4.0, help="seconds in which steps are timed")
    parser.add_argument("--seconds", type=float, default=230.0, help="nothing begins or goes on after these")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--pcn-alone", action="store_true", help="convert and time the PCNs, not their parents")
    given = parser.parse_args()
    given.batch = given.batch or (4 if given.tiny else 256)
    given.samples = given.samples or (16 if given.tiny else PAPER_SAMPLES)
    return given


if __name__ == "__main__":
    main()
