"""What a command is: write one as a module with a ``COMMAND`` and add its name to ``COMMANDS`` in ``app.py``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from pcn.cli.screen import Screen
from pcn.errors import PCNError


class WrongUsageError(PCNError):
    """Flags are missing, or do not go together: the command ends with exit code 2."""


@dataclass(frozen=True)
class Command:
    """A name, what its help says, the arguments that it takes and what it does.

    ``run`` raises a :class:`pcn.errors.PCNError` for what the user can cause.
    """

    name: str
    description: str
    examples: tuple[str, ...]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Screen], None]
