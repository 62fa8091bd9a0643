"""What looking at a network costs: collecting statistics, and finding the leading directions of very wide inputs.

    python benchmarks/analysis.py                      every part that the machine can run, results as JSON
    python benchmarks/analysis.py --only leading       one part; the others keep their earlier results
    python benchmarks/analysis.py --data DIR           Conv4 really trained, on CIFAR-10's binary version in DIR
    python benchmarks/analysis.py --tiny --out FILE    seconds instead of minutes, to see that it runs

Every part says what it measured, on which device, in which precision and with how many threads.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pcn
from pcn import models
from pcn.layers import LINEAR
from pcn.statistics import forms
from pcn.statistics.blocks import as_block
from pcn.statistics.forms import SketchOptions
from pcn.statistics.spectrum import Spectrum

RESULTS = Path(__file__).parent / "results" / "analysis.json"
THRESHOLD = 0.1  # the paper's tau for dense layers


@dataclass(frozen=True)
class Setting:
    device: torch.device
    tiny: bool
    data: Path | None

    def pick(self, full: int, tiny: int) -> int:
        return tiny if self.tiny else full


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, help="the parts to run (all that the device can run)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="CPU threads (torch's own choice)")
    parser.add_argument("--data", type=Path, help="folder with CIFAR-10's data_batch_1.bin and so on")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if given.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(given.threads)  # for the processes started below
    setting = Setting(torch.device(given.device), given.tiny, given.data)
    wanted = given.only or [name for name in PARTS if name != "conversion" or setting.device.type == "cuda"]
    for name in wanted:
        # A process for each part, so that one part's memory does not show in another's peak.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            result = pool.submit(run, name, setting).result()
        print(json.dumps({name: result}, indent=2))
        trained = name == "leading" and setting.data is not None
        save(given.out, "leading_trained" if trained else name, setting.device.type, result)


def run(name: str, setting: Setting) -> dict[str, Any]:
    return {**machine(setting.device), **PARTS[name](setting)}


def save(path: Path, part: str, device: str, result: dict[str, Any]) -> None:
    found = json.loads(path.read_text()) if path.exists() else {}
    found.setdefault(part, {})[device] = result
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")


def machine(device: torch.device) -> dict[str, Any]:
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "pcn": pcn.__version__,
        "precision": "fp32" + (f", TF32 in convolutions: {torch.backends.cudnn.allow_tf32}" if cuda else ""),
    }


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def seconds(action: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def collection(setting: Setting) -> dict[str, Any]:
    """Statistics of every layer of WideResNet-20, against the bare forward pass over the same images."""
    device, cuda = setting.device, setting.device.type == "cuda"
    model = models.wide_resnet20(width=setting.pick(64, 8)).to(device)
    size, count, repeats = (1000, 5, 7) if cuda else (setting.pick(128, 4), setting.pick(4, 2), setting.pick(5, 2))
    batches = [torch.randn(size, 3, 32, 32, device=device) for _ in range(count)]

    calibrate_(model, batches[0])

    @torch.no_grad()
    def bare() -> None:
        for batch in batches:
            model(batch)

    def collect() -> None:
        pcn.analyze(model, batches)

    seconds(bare, device), seconds(collect, device)  # warm up
    times, processor = [], []
    for _ in range(repeats):
        start = time.process_time()
        forward = seconds(bare, device)
        middle = time.process_time()
        times.append((forward, seconds(collect, device)))
        processor.append((time.process_time() - middle) / (middle - start))
    forward, collecting = (statistics.median(column) for column in zip(*times, strict=True))
    ratios = [b / a for a, b in times]
    return {
        "network": "wide_resnet20",
        "images": size * count,
        "batch": size,
        "forward_s": forward,
        "collect_s": collecting,
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        # on a machine that others use too, processor time says more than time on the clock
        **({} if cuda else {"ratio_of_processor_time": statistics.median(processor)}),
        "target_ratio": 1.5,
    }


@torch.no_grad()
def calibrate_(model: nn.Module, batch: Tensor) -> None:
    """Give batch norm the statistics of a network in use; with those of a new one, activations grow layer by layer."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    model.train()(batch[:64])
    model.eval()


def leading(setting: Setting) -> dict[str, Any]:
    """The directions with variance above 0.1 of the input of Conv4's fc1, against all directions by other means."""
    from sklearn.decomposition import PCA

    device = setting.device
    source, rows = conv4_rows(setting) if setting.data else synthetic_rows(setting)
    rows = rows.to(device)
    found: dict[str, Any] = {}

    def ours() -> None:
        spectrum = Spectrum(forms.begin(as_block(rows, LINEAR), SketchOptions()), "fc1")
        count = spectrum.count_above(THRESHOLD)
        found.update(count=count, values=spectrum.leading(count)[0][0].cpu())

    times = [seconds(ours, device) for _ in range(setting.pick(4, 2))][1:]
    covariance = forms.begin(as_block(rows, LINEAR), SketchOptions()).covariance()[0]
    eigh_precision, eigh_s = time_eigh(covariance, device)
    expected = rows.cpu().numpy()
    pca = PCA(svd_solver="full")
    pca_s = seconds(lambda: pca.fit(expected), device)
    exact = torch.from_numpy(pca.explained_variance_).double()
    ours_s = statistics.median(times)
    return {
        "source": source,
        "samples": len(rows),
        "width": rows.shape[1],
        "threshold": THRESHOLD,
        "count": found["count"],
        "count_scikit_learn": int((exact > THRESHOLD).sum()),
        "largest_relative_difference": float((found["values"] / exact[: found["count"]] - 1).abs().max()),
        "ours_s": ours_s,
        "ours_range_s": [min(times), max(times)],
        "eigh_s": eigh_s,
        "eigh_precision": eigh_precision,
        "scikit_learn_full_fp32_s": pca_s,
        "times_faster_than_eigh": eigh_s / ours_s,
        "times_faster_than_scikit_learn": pca_s / ours_s,
        "target_times_faster": 20,
    }


def time_eigh(covariance: Tensor, device: torch.device) -> tuple[str, float]:
    """Time ``torch.linalg.eigh`` in fp32; with fewer samples than dimensions it may not converge, in fp64 it does."""
    try:
        return "fp32", seconds(lambda: torch.linalg.eigh(covariance.float()), device)
    except torch.linalg.LinAlgError:
        return "fp64, as fp32 did not converge", seconds(lambda: torch.linalg.eigh(covariance), device)


def synthetic_rows(setting: Setting) -> tuple[str, Tensor]:
    """Samples whose variances fall as 40 / i^1.5, about as those of a network in its first epochs."""
    count, width = setting.pick(5000, 900), setting.pick(8192, 1800)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(count, width, generator=generator)
    rows *= (40 * torch.arange(1.0, width + 1) ** -1.5).sqrt()
    for _ in range(4):  # reflections: the directions are not the axes
        direction = F.normalize(torch.randn(width, generator=generator), dim=0)
        rows -= 2 * torch.outer(rows @ direction, direction)
    return "synthetic, variances 40 / i^1.5", rows + 3


def conv4_rows(setting: Setting, epochs: int = 2) -> tuple[str, Tensor]:
    """The input of fc1 in a Conv4 trained as in the paper: Adam, batches of 60, pixels divided by 255."""
    torch.manual_seed(0)
    images, labels = cifar10(setting)
    order = torch.randperm(len(images), device=images.device)
    model = models.conv4().to(setting.device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(epochs):
        for index in order[torch.randperm(len(order), device=order.device)].split(60):
            optimizer.zero_grad()
            F.cross_entropy(model(images[index]), labels[index]).backward()
            optimizer.step()
    seen = pcn.analyze(model, images[order[: setting.pick(5000, 900)]].split(500), layers="fc1")
    kept = seen.moments["fc1"]
    return f"Conv4 after {epochs} epochs of CIFAR-10", torch.cat(kept.parts)


def cifar10(setting: Setting) -> tuple[Tensor, Tensor]:
    assert setting.data is not None
    files = sorted(setting.data.rglob("data_batch_*.bin"))
    if not files:
        raise SystemExit(f"no data_batch_*.bin under {setting.data}: unpack CIFAR-10's binary version there")
    raw = torch.cat([torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8) for file in files])
    records = raw.view(-1, 3073)[: setting.pick(45000, 1200)]
    images = records[:, 1:].view(-1, 3, 32, 32).to(setting.device)
    return images.float() / 255, records[:, 0].long().to(setting.device)


class Stream:
    """Rows of VGG-19's fc1 input size, made anew each time they are gone through, and never all there at once."""

    def __init__(self, setting: Setting) -> None:
        self.count, self.width, self.device = setting.pick(50176, 2048), setting.pick(25088, 1500), setting.device
        self.latent = setting.pick(1024, 100)
        generator = torch.Generator().manual_seed(1)
        scales = (40 * torch.arange(1.0, self.latent + 1) ** -1.2).sqrt()
        directions = torch.randn(self.latent, self.width, generator=generator) / self.width**0.5
        self.factor = (scales.unsqueeze(1) * directions).to(self.device)
        self.hidden = torch.zeros(self.latent, self.latent, dtype=torch.float64, device=self.device)
        self.hidden_sum = torch.zeros(self.latent, dtype=torch.float64, device=self.device)

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(2)
        self.hidden.zero_(), self.hidden_sum.zero_()
        for _ in range(self.count // 256):
            latent = torch.randn(256, self.latent, generator=generator).to(self.device)
            self.hidden += latent.T.double() @ latent.double()
            self.hidden_sum += latent.sum(0)
            yield latent @ self.factor + 1

    def covariance_factor(self) -> Tensor:
        """A (latent, width) with Aᵀ A the covariance of the rows, exactly."""
        centred = self.hidden - torch.outer(self.hidden_sum, self.hidden_sum) / self.count
        return torch.linalg.cholesky(centred / (self.count - 1)).T @ self.factor.double()


def streaming(setting: Setting) -> dict[str, Any]:
    """Directions of the input of VGG-19's fc1 from samples that never fit in memory: peak memory and time."""
    rank, cuda = setting.pick(350, 20), setting.device.type == "cuda"
    if setting.tiny:
        forms.COVARIANCE_WIDTH = forms.LARGEST_COVARIANCE = 1000
    stream = Stream(setting)
    model = nn.Sequential(nn.Linear(stream.width, 1, device=setting.device))
    generating_s = seconds(lambda: sum(1 for _ in stream), setting.device)
    before = peak_bytes(cuda)
    found: dict[str, Any] = {}

    def ours() -> None:
        seen = pcn.analyze(model, stream, max_rank=rank)
        found.update(values=seen.spectrum("0").leading(rank)[0][0], basis=seen.basis("0", rank))

    taken_s = seconds(ours, setting.device)
    peak = peak_bytes(cuda)
    factor = stream.covariance_factor()
    exact = torch.linalg.eigvalsh(factor @ factor.T).flip(0)[:rank]
    error = (found["values"] / exact - 1).abs()
    held = (factor @ found["basis"]).square().sum() / exact.sum()
    return {
        "width": stream.width,
        "samples": stream.count,
        "rank": rank,
        "passes": 2,
        "peak_memory_gb": peak / 1e9,
        "peak_memory_before_gb": before / 1e9,
        "memory_is": "torch.cuda.max_memory_allocated" if cuda else "resident set of the whole process",
        "target_memory_gb": 4,
        "seconds": taken_s,
        "of_which_making_the_samples_s": 2 * generating_s,
        "variance_held_relative_to_the_best_basis": float(held),
        "eigenvalue_largest_relative_error": float(error.max()),
        "eigenvalue_median_relative_error": float(error.median()),
    }


def peak_bytes(cuda: bool) -> int:
    if cuda:
        return torch.cuda.max_memory_allocated()
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def conversion(setting: Setting) -> dict[str, Any]:
    """A warm conversion of WideResNet-20 to the paper's PCN1; tracing and the check afterwards are timed apart."""
    device, name = setting.device, "wide_resnet20-pcn1"
    count = setting.pick(5000, 8)
    batches = list(torch.randn(count, 3, 32, 32, device=device).split(1000))
    cold, *warm = [convert_once(name, batches, device) for _ in range(setting.pick(6, 2))]
    medians = {key: statistics.median(run[key] for run in warm) for key in cold}
    totals = [run["total_s"] for run in warm]
    return {
        "network": name,
        "images": count,
        **medians,
        "total_range_s": [min(totals), max(totals)],
        "cold_total_s": cold["total_s"],
        "target_total_s": 0.5,
    }


def convert_once(name: str, batches: list[Tensor], device: torch.device) -> dict[str, float]:
    """One conversion, stage by stage; ``total_s`` is statistics, plan and surgery."""
    model, config = models.build(name).to(device), models.config(name)
    made: dict[str, Any] = {}

    def look() -> None:
        made["seen"] = pcn.analyze(model, batches)

    def trace() -> None:
        made["graph"] = pcn.trace(model, made["seen"].example)

    def plan() -> None:
        made["plan"] = pcn.make_plan(model, made["seen"], config, graph=made["graph"])

    def apply() -> None:
        made["plan"].apply_(model, made["seen"], check=False)

    @torch.no_grad()
    def check() -> None:
        made["seen"].example.call(model)

    steps = {"statistics_s": look, "tracing_s": trace, "plan_s": plan, "surgery_s": apply, "check_s": check}
    times = {step: seconds(action, device) for step, action in steps.items()}
    return {**times, "total_s": sum(times[step] for step in ("statistics_s", "plan_s", "surgery_s"))}


PARTS: dict[str, Callable[[Setting], dict[str, Any]]] = {
    "collection": collection,
    "leading": leading,
    "streaming": streaming,
    "conversion": conversion,
}

if __name__ == "__main__":
    main()
