"""What the switch costs inside a training run: looking, planning, cutting, and setting the training step up again.

    python benchmarks/switch.py                                 both networks, within --seconds; results as JSON
    python benchmarks/switch.py --only conv4                    one network; the other keeps its earlier results
    python benchmarks/switch.py --tiny --device cpu --out FILE  a minute, to see that it runs; compiles nothing really

One process per network trains, switches and goes on. Then, in fresh processes, the new network is compiled again in
other ways: block by block or as a whole, with kernels tuned or not, with one compiling process or several, with an
empty cache on disk or a full one. A process that takes too long is stopped and costs no other. Results are saved as
they come.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from switch_jobs import NETWORKS, How, Network, Result, Setting, cache_folder, compile_again, train_and_switch, work
from watched import watched

RESULTS = Path(__file__).parent / "results" / "switch.json"
SEVERAL = 8
DEFAULT = How("blocks", "blocks", processes=SEVERAL)
Ways = list[list[How]]  # one after another; those of one line run side by side
FIRST_WAYS: Ways = [
    [replace(DEFAULT, label="blocks, warm cache")],  # filled by the run that switched
    [  # these take long, but only a core each; no steps are timed
        How("whole, tuned, 1 process", "whole_1", whole=True, tuned=True, steps_timed=False),
        How("blocks, 1 process", "blocks_1", steps_timed=False),
    ],
    [How("whole, tuned", "whole_tuned", whole=True, tuned=True, processes=SEVERAL)],
]
FURTHER_WAYS: Ways = [
    [replace(DEFAULT, cache="blocks_again")],
    [How("whole", "whole", whole=True, processes=SEVERAL)],
    [How("blocks, tuned", "blocks_tuned", tuned=True, processes=SEVERAL)],
    [How("whole, warm cache", "whole", whole=True, processes=SEVERAL)],
]
LIMITS_S = {"switch": 80.0, "compile": 70.0}  # on a GPU; a stalled pool of compiling processes costs no more
NEEDED_S = 15.0  # no process is started for less than this


def main() -> None:
    given = arguments()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        setting = Setting(given.device, given.tiny, given.backend, Path(folder), given.processes)
        run = Run(setting, given.out, started, started + given.seconds)
        for name in given.only:
            run.switch(NETWORKS[name])
            run.compile(NETWORKS[name], FIRST_WAYS)
        for name in given.only:
            run.compile(NETWORKS[name], FURTHER_WAYS)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, help=f"processes that compile ({SEVERAL})")
    parser.add_argument("--seconds", type=float, default=195.0, help="no part starts or goes on after these")
    parser.add_argument("--backend", help="of torch.compile (inductor; with --tiny aot_eager)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    given.backend = given.backend or ("aot_eager" if given.tiny else "inductor")
    return given


class Run:
    """The processes one after another, until the time is up."""

    def __init__(self, setting: Setting, out: Path, started: float, deadline: float) -> None:
        self.setting, self.out, self.started, self.deadline = setting, out, started, deadline
        self.plans: dict[str, str] = {}
        self.saving = threading.Lock()

    def switch(self, network: Network) -> None:
        how = self._how(DEFAULT)
        if self._run(network, "switch", train_and_switch, how) and how.processes > 1:
            self._say(f"{network.name}: once more, and from now on with one compiling process")
            self.setting = replace(self.setting, processes=1)
            shutil.rmtree(cache_folder(self.setting, network, how), ignore_errors=True)
            self._run(network, "switch", train_and_switch, self._how(DEFAULT))

    def compile(self, network: Network, ways: Ways) -> None:
        """Compile a network anew in several ways, if it is one that is trained compiled."""
        plan = self.plans.get(network.name)
        if not network.compiled or plan is None:
            return
        for line in ways:
            with ThreadPoolExecutor(len(line)) as threads:
                list(threads.map(lambda how: self._run(network, "compile", compile_again, self._how(how), plan), line))

    def _how(self, how: How) -> How:
        several = how.processes > 1 and self.setting.processes is not None
        return replace(how, processes=self.setting.processes) if several else how

    def _run(self, network: Network, kind: str, task: Callable[..., Iterator[Result]], how: How, *more: Any) -> bool:
        """Run one process and save what it reports; returns whether it failed."""
        left_s = self.deadline - time.monotonic()
        limit_s = min(LIMITS_S[kind], left_s) if self.setting.cuda else left_s
        what = f"{network.name}: {kind}, {how.label} ({how.processes} compiling)"
        if limit_s < NEEDED_S:
            self._say(f"{what}: left out, the time is up")
            return False
        self._say(what)
        began = time.monotonic()
        for report in reports(limit_s, task, self.setting, network, how, *more):
            self.plans.update(report.pop("plan", {}))
            self._say(json.dumps(report))
            if "failed" in report:
                return True
            with self.saving:
                save(self.out, network.name, self.setting.device, report)
        self._say(f"{what}: took {time.monotonic() - began:.1f} s")
        return False

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)


def save(path: Path, network: str, device: str, report: Result) -> None:
    """Put a report into the results; what it does not speak of stays."""
    found = json.loads(path.read_text()) if path.exists() else {}
    known = found.setdefault(network, {}).setdefault(device, {})
    for key, value in report.items():
        known[key] = {**known.get(key, {}), **value} if isinstance(value, dict) else value
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")


def reports(limit_s: float, task: Callable[..., Iterator[Result]], *arguments: Any) -> Iterator[Result]:
    """Yield what a function yields in a process of its own, which ends with the time limit."""
    return watched(arguments[2].label, limit_s, work, task, *arguments)


if __name__ == "__main__":
    main()
