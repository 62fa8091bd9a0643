"""Kills training runs with SIGKILL, starts them again until they end, and compares them with one never killed.

    python tests/training/killing.py --moments 200 --instants 40 --seed 1

``--moments`` kills come at random times, ``--instants`` at the n-th renaming, flush or write of a file, half of it
being written. Prints one line of JSON; exits with 1 when a run ended otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import sklearn.datasets  # noqa: F401  here and once, so that the forked processes need not
import torch.export
import torch.utils.tensorboard  # noqa: F401
from safetensors.torch import load_file

from pcn.cli import main
from pcn.training.checkpoints import Checkpoints

EPOCHS, SWITCH = 4, 2
ARGUMENTS = (
    "train --model small_network:build --data digits --optimizer adam --learning-rate 0.003 --batch 64 --threads 1"
    f" --epochs {EPOCHS} --switch-at {SWITCH} --rank 0.25 --checkpoint-every 0.3 --augment crop-flip --device cpu"
).split()
POINTS = ("replace", "fsync", "write")


def start(folder: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """Train in a process of its own, forked so that nothing has to be imported again; return its number."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        prepare()
        code = main([*ARGUMENTS, "--out", str(folder)])
    finally:
        os._exit(code)


def ended(process: int) -> bool:
    """Wait for a process; say whether it came to its end, or raise when it failed."""
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        return False
    if os.WEXITSTATUS(status):
        raise SystemExit(f"a run failed with exit code {os.WEXITSTATUS(status)}")
    return True


def kill_after(process: int, seconds: float) -> bool:
    """Kill a process after so long; return whether that came before its end."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            assert status == 0, status
            return False
        time.sleep(0.001)
    os.kill(process, signal.SIGKILL)
    return not ended(process)


def die_at(point: str, count: int) -> Callable[[], None]:
    """Have this process kill itself at the n-th call of a function that writes."""

    def prepare() -> None:
        calls = 0

        def dying(real: Callable[..., object], half: bool) -> Callable[..., object]:
            def call(*args: object) -> object:
                nonlocal calls
                calls += 1
                if calls == count:
                    if half:
                        path, data = args
                        real(path, data[: len(data) // 2])  # type: ignore[index]
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args)

            return call

        if point == "write":
            Path.write_bytes = dying(Path.write_bytes, half=True)  # type: ignore[assignment, method-assign]
        else:
            setattr(os, point, dying(getattr(os, point), half=False))

    return prepare


def outcome(folder: Path) -> dict[str, object]:
    """What a run ends with, without the seconds that it took."""
    state, _ = Checkpoints(folder / "checkpoints").newest("cpu")  # type: ignore[arg-type]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    return {
        "weights": {
            name: tensor.tolist() for name, tensor in load_file(folder / "model" / "model.safetensors").items()
        },
        "plan": (folder / "plan.json").read_text(),
        "spectra": (folder / "spectra.json").read_text(),
        "metrics": [{key: value for key, value in line.items() if not key.endswith("seconds")} for line in lines],
        "optimizer": repr(state["optimizer"]["state"]),
        "random": repr(state["random"]),
        "result": {key: value for key, value in result.items() if not key.endswith("seconds")},
    }


class Killer:
    """Runs that are killed, one after the other, until they end as the reference did."""

    def __init__(self, room: Path, seed: int) -> None:
        self.room, self.random = room, random.Random(seed)
        self.runs = self.kills = self.different = 0
        started = time.monotonic()
        ended(start(room / "reference"))
        self.duration_s = time.monotonic() - started
        self.expected = outcome(room / "reference")

    def at_moments(self, kills: int) -> None:
        """Kill at random times until there were so many kills."""
        wanted = self.kills + kills
        while self.kills < wanted:
            folder = self.room / f"run-{self.runs}"
            while self.kills < wanted and kill_after(start(folder), self.random.uniform(0, 1.1 * self.duration_s)):
                self.kills += 1
            self.finish(folder)

    def at_instants(self, kills: int) -> None:
        """Kill at the n-th write of a kind, each in a run of its own, until there were so many kills."""
        wanted = self.kills + kills
        while self.kills < wanted:
            folder = self.room / f"run-{self.runs}"
            self.kills += not ended(start(folder, die_at(self.random.choice(POINTS), self.random.randint(1, 20))))
            self.finish(folder)

    def finish(self, folder: Path) -> None:
        if not ended(start(folder)):
            raise SystemExit("a run was killed by somebody else")
        self.runs += 1
        if outcome(folder) == self.expected:
            shutil.rmtree(folder)
        else:
            self.different += 1


def run() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--instants", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.chdir(Path(__file__).parent)
    with tempfile.TemporaryDirectory() as room:
        killer = Killer(Path(room), options.seed)
        killer.at_moments(options.moments)
        killer.at_instants(options.instants)
    counts = {"kills": killer.kills, "runs": killer.runs, "different": killer.different}
    print(json.dumps({**counts, "one_run_s": round(killer.duration_s, 2)}))  # noqa: T201
    return 1 if killer.different else 0


if __name__ == "__main__":
    sys.exit(run())
