"""Whether runs at once on one GPU get more done than one after another: steps per second of 1, 2, 4 ... processes.

    python benchmarks/together.py                                      PCN1, unfused, and its parent, at batch 128
    python benchmarks/together.py --only wide_resnet20-pcn2 --counts 1 3
    python benchmarks/together.py --tiny --device cpu --out FILE       seconds, to see that it runs

Each process trains one network in a CUDA graph on a batch of its own, with and without NVIDIA's Multi-Process Service.
Processes are there all the time; those whose turn it is not wait. Results are saved as they come.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from pcn.whole_files import write_whole
from peers import RESULTS  # which finds the experiments' modules as well
from step_time_jobs import Job, Setting, set_up, start_process
from step_time_networks import NETWORKS, TINY
from watched import context, end

READY_S = 180.0  # for a process to compile
ENDING_S = 5.0  # for one that has nothing left to do
ROLES = ("parent", "pcn_unfused")
Record = dict[str, Any]


def main() -> None:
    given = arguments()
    setting = Setting(given.device, given.tiny, given.cache)
    records: list[Record] = []
    for name in ["tiny"] if given.tiny else given.only:
        network = TINY if given.tiny else NETWORKS[name]
        for role in ROLES:
            job = Job(network, role, given.batch, "blocks" if network.has_blocks else "whole")
            for way in ("taking turns", "MPS") if setting.cuda else ("taking turns",):
                with sharing(way) as environment:
                    for record in measured(setting, job, given.counts, given.seconds, dict(environment)):
                        records.append({"network": job.model, "role": role, "batch": job.batch, "way": way, **record})
                        print(json.dumps(records[-1]), flush=True)
                        write_whole(given.out, (json.dumps(records, indent=1) + "\n").encode())


def sharing(way: str) -> AbstractContextManager[dict[str, str]]:
    """The environment in which processes share the GPU in this way."""
    from gpu_sharing import shared_gpu

    return shared_gpu() if way == "MPS" else nullcontext({})


def measured(
    setting: Setting, job: Job, counts: Sequence[int], seconds: float, environment: dict[str, str]
) -> Iterator[Record]:
    """Steps per second of so many processes at once, all together."""
    with trainers(setting, job, max(counts), environment) as connections:
        if not all(connection.poll(READY_S) and connection.recv() for connection in connections):
            print(f"{job}: not ready after {READY_S:.0f} s", flush=True)
            return
        for count in counts:
            for connection in connections[:count]:
                connection.send(seconds)
            rates = [connection.recv() for connection in connections[:count]]
            yield {"together": count, "steps_per_s": sum(rates), "slowest": min(rates), "fastest": max(rates)}


@contextmanager
def trainers(setting: Setting, job: Job, count: int, environment: dict[str, str]) -> Iterator[list[Connection]]:
    """Processes that are ready to train; the first one compiles before the others look what it has left them."""
    started: list[tuple[Any, Connection]] = []
    try:
        for _ in range(count):
            ours, theirs = context().Pipe()
            process = context().Process(target=train, args=(theirs, setting, job, environment))
            process.start()
            theirs.close()
            started.append((process, ours))
            if len(started) == 1:
                ours.poll(READY_S)
        yield [connection for _, connection in started]
    finally:
        for process, connection in started:
            connection.close()
            process.join(ENDING_S)
            end(process)


def train(connection: Connection, setting: Setting, job: Job, environment: dict[str, str]) -> None:
    """Set a step up, then run it for so many seconds whenever that is asked for."""
    os.environ.update(environment)  # before CUDA is touched
    start_process(setting)
    step = set_up(setting, job)
    connection.send(True)
    run = step.graph.replay if step.graph is not None else lambda: step(step.inputs, step.labels)
    while True:
        try:
            seconds = connection.recv()
        except EOFError:
            return
        steps, began = 0, time.monotonic()
        while time.monotonic() - began < seconds:
            for _ in range(10):
                run()
            steps += 10
            if setting.cuda:
                torch.cuda.synchronize()
        connection.send(steps / (time.monotonic() - began))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(NETWORKS), default=["wide_resnet20-pcn1"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--counts", nargs="+", type=int, default=[1, 2, 4, 6], metavar="N")
    parser.add_argument("--seconds", type=float, default=3.0, help="of every measurement")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cache", type=Path, default=Path("runs/together"), help="folder for compiled code")
    parser.add_argument("--out", type=Path, default=RESULTS / "together.json")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
