"""One self-contained HTML page about a run, or about statistics and a plan.

``write_report(path, of_run("runs/mine"))`` or ``write_report(path, of(stats, plan))``: the file needs no network.
"""

from pcn.report.data import of, of_run
from pcn.report.html import render, write_report

__all__ = ["of", "of_run", "render", "write_report"]
