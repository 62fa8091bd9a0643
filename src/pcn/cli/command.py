"""What a command is: write one as a module with a ``COMMAND`` and add it to ``COMMANDS`` in ``app.py``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from pcn.cli.screen import Screen


@dataclass(frozen=True)
class Command:
    """A name, its help, the arguments that it takes and what it does.

    ``run`` raises a :class:`pcn.errors.PCNError` for what the user can cause.
    """

    name: str
    summary: str
    description: str
    examples: tuple[str, ...]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Screen], None]
