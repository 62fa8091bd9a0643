"""What a person sees: tables and progress on a terminal, plain text in a pipe, one JSON document with ``--json``."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

PIPE_WIDTH = 160  # wide enough that no table is cut where there is no terminal to ask
FLAGS = {  # what the library advises in Python
    "Budget(step=1)": "--rank-step 1",
    "form='dense'": "--form dense",
    "PCNConfig(kernel_rank=4)": "--kernel-rank 4",
    "PCNConfig(skip_larger=False)": "--no-skip-larger",
    "PCNConfig(keep_dropped=True)": "--keep-dropped",
    "keep_dropped=True": "--keep-dropped",
    "give what Statistics.save wrote": "give a file that pcn analyze --out wrote",
    "(skip_larger=False insists)": "(--no-skip-larger insists)",
}


def in_flags(message: str) -> str:
    """What is advised in Python, as a flag.

    >>> in_flags("use form='dense'")
    'use --form dense'
    """
    for python, flag in FLAGS.items():
        message = message.replace(python, flag)
    return message


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # for the command line to handle; the default ends the process with an error


class Screen:
    """Results go to standard output, progress to standard error."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        self._out = _Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=True)
        self._err = Console(stderr=True, quiet=json, highlight=False)
        self._bar_is_shown = False

    def text(self, line: object = "") -> None:
        """Print as it is, unless only JSON is wanted."""
        if not self.json:
            self._console.print(in_flags(str(line)), markup=False)

    def heading(self, line: str) -> None:
        """Print a line that stands out, after an empty one."""
        if not self.json:
            self._console.print()
            self._console.print(line, style="bold", markup=False)

    def warn(self, line: str) -> None:
        """Say on standard error what should not be missed, with JSON too."""
        sys.stderr.write(f"pcn: warning: {line}\n")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table: the first column is a name, all others are numbers."""
        if self.json:
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for index, column in enumerate(columns):
            table.add_column(column, justify="right" if index else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
        self._console.print(table)

    def result(self, value: Any) -> None:
        """Print the JSON document, if that is wanted."""
        if self.json:
            sys.stdout.write(json_format.dumps(value, indent=2) + "\n")

    @contextmanager
    def progress(self, total: int, what: str = "") -> Iterator[Progress]:
        """Show a bar on a terminal and nothing in a pipe; its one task is the first."""
        times = (TimeElapsedColumn(), TextColumn("passed,"), TimeRemainingColumn(), TextColumn("to go"))
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times)
        hidden = not self._err.is_terminal or self.json
        with Progress(*columns, console=self._err, transient=True, disable=hidden) as bar:
            bar.add_task(what, total=total)
            self._bar_is_shown = not hidden
            try:
                yield bar
            finally:
                self._bar_is_shown = False

    @property
    def _console(self) -> Console:
        """Where lines go: on a terminal the bar must know of them, or they would be written into it."""
        return self._err if self._bar_is_shown and self._out.is_terminal else self._out
