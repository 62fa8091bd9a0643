"""``pcn report``: one self-contained HTML page about a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from pcn.cli.command import Command
from pcn.cli.destination import make_room_for_file
from pcn.cli.screen import Screen
from pcn.report import of_run, write_report
from pcn.training.run_folder import REPORT


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run, finished or not")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"where the page goes (default: RUN/{REPORT})")


def _run(arguments: argparse.Namespace, screen: Screen) -> None:
    make_room_for_file(arguments.out)
    path = write_report(arguments.out or arguments.run / REPORT, of_run(arguments.run))
    screen.text(f"the report is in {path}")
    screen.result({"report": str(path), "bytes": path.stat().st_size})


COMMAND = Command(
    name="report",
    description="Make a page about a run, be it finished or not: what was saved, what every layer keeps and why,\n"
    "spectra, effective dimensions and accuracy over epochs, and a slider that tries other thresholds.\n"
    "The file needs no network. pcn train writes it at its end.",
    examples=("pcn report runs/DigitsNetwork-digits-0", "pcn report runs/mine --out mine.html"),
    add_arguments=_add_arguments,
    run=_run,
)
