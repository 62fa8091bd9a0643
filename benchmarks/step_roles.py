"""What the looks into a single step have in common: their flags, a process for each network, and what they find."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pcn.whole_files import write_whole
from step_time_jobs import Job, Result, Setting, work
from step_time_networks import NETWORKS
from watched import watched

Look = Callable[[Setting, Job], Iterator[Result]]


def look_at_roles(
    description: str | None, look: Look, show: Callable[[str, Any], None], *, roles: Sequence[str], limit_s: float
) -> None:
    """Have a process look at the step of each role that is asked for; show what it finds, and keep it in a file."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=list(NETWORKS), default="wide_resnet20-pcn1")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--roles", nargs="+", default=list(roles))
    parser.add_argument("--way", choices=("whole", "blocks"), default="whole", help="of compiling")
    parser.add_argument("--cache", type=Path, help="folder that keeps compiled code, as step_time.py's")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        setting = Setting("cuda", False, given.cache or Path(folder))
        for role in given.roles:
            job = Job(NETWORKS[given.network], role, given.batch, given.way)
            for report in watched(str(job), limit_s, work, look, setting, job):
                if "failed" in report:
                    print(report["failed"], flush=True)
                    continue
                found[role] = report["found"]
                show(role, found[role])
    if given.out:
        write_whole(given.out, (json.dumps(found, indent=1) + "\n").encode())
