"""Every experiment of the paper that has not been run yet, as much of it as fits into the time.

    python experiments/run_all.py --data DIR --time-limit 1700
    python experiments/run_all.py --data DIR --dry-run                  # say what would be run

DIR holds CIFAR-10's binary version and MNIST (--mnist, where that lies elsewhere). The lanes below run side by side on
one GPU, each command after the one before it, the most wanted first; what is recorded is skipped and what was stopped
goes on from its checkpoint, so the same command again does the rest. At the end the GPU is left to one network at a
time, for time and energy. Output: runs/logs/. Tables and figures in docs/ are brought up to date.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from gpu_sharing import shared_gpu
from processes import SIDE_BY_SIDE

HERE = Path(__file__).parent
Command = list[str]  # a script and its arguments; DATA and MNIST stand for folders

TABLE_2 = "wide_resnet20 wide_resnet20-pcn0 wide_resnet20-pcn1 wide_resnet20-pcn2 wide_resnet20-half resnet20"
WIDE = "wide_resnet20-pcn1 wide_resnet20-pcn2 wide_resnet20 wide_resnet20-half"
LANES: dict[str, list[str]] = {
    "table 2": [
        f"cifar10_resnets.py --data DATA --networks {TABLE_2} --seeds 0 1 2 --together 4",
        f"open_questions.py --data DATA --networks {WIDE} --together 4",
    ],
    "resnet110": [
        "cifar10_resnets.py --data DATA --networks resnet110 --seeds 0 --shared",
    ],
    "small networks": [
        "cifar10_conv4.py --data DATA --together 8",
        "conv4_dimensions.py --data DATA --together 8",
        "conv4_robustness.py --data DATA --together 8",
        "open_questions.py --data DATA --networks conv4-pcn --seeds 0 1 2 3 4 --together 8",
        "mnist_width.py --data MNIST --together 8",
    ],
}
ALONE = ["time_and_energy.py --data DATA", "digits_recalibration.py"]
GRACE_S = 45.0  # for a script to stop by itself after its time


def command(line: str, options: argparse.Namespace) -> Command:
    folders = {"DATA": str(options.data), "MNIST": str(options.mnist or options.data)}
    return [folders.get(word, word) for word in shlex.split(line)]


def run_lane(
    name: str, lines: list[str], options: argparse.Namespace, deadline: float, environment: dict[str, str]
) -> None:
    """Run a lane's commands one after another until the time is up."""
    for line in lines:
        left_s = deadline - time.time()
        if left_s < 10:
            say(f"{name}: {line.split()[0]} is left out, the time is up")
            continue
        script, *arguments = command(line, options)
        log = options.logs / f"{name.replace(' ', '_')}-{Path(script).stem}.log"
        started = time.time()
        code = run(
            [sys.executable, str(HERE / script), *arguments, "--time-limit", f"{left_s:.0f}"], log, left_s, environment
        )
        say(f"{name}: {script} ended with {code} after {time.time() - started:.0f} s, see {log}")


def run(words: Command, log: Path, limit_s: float, environment: dict[str, str]) -> int | None:
    """Run a command with its output in a file; None when it had to be stopped."""
    with log.open("a") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            return process.wait(limit_s + GRACE_S)
        except subprocess.TimeoutExpired:
            return None
        finally:  # what it started ends with it
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def main() -> None:
    options = arguments().parse_args()
    if options.dry_run:
        for name, lines in {**LANES, "alone": ALONE}.items():
            print(f"{name}:", *(shlex.join(command(line, options)) for line in lines), sep="\n  ")
        return
    options.logs.mkdir(parents=True, exist_ok=True)
    deadline = time.time() + options.time_limit
    together = deadline - options.alone - GRACE_S
    with shared_gpu() as gpu, ThreadPoolExecutor(len(LANES)) as threads:
        environment = {**SIDE_BY_SIDE, **gpu}  # what the user has set stays
        lanes = {name: lines for name, lines in LANES.items() if name in options.lanes}
        list(threads.map(lambda lane: run_lane(*lane, options, together, environment), lanes.items()))
    run_lane("alone", ALONE, options, deadline - GRACE_S, dict(os.environ))
    subprocess.run([sys.executable, str(HERE / "document.py")], check=False)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10's binary version")
    parser.add_argument("--mnist", type=Path, help="folder with MNIST's files, if not the same")
    parser.add_argument("--time-limit", type=float, default=1e9, metavar="SECONDS")
    parser.add_argument("--alone", type=float, default=300, metavar="SECONDS", help="kept for time and energy")
    parser.add_argument("--lanes", nargs="+", choices=LANES, default=tuple(LANES), metavar="NAME")
    parser.add_argument("--logs", type=Path, default=Path("runs/logs"))
    parser.add_argument("--dry-run", action="store_true")
    return parser


if __name__ == "__main__":
    main()
