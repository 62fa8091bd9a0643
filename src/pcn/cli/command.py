"""What a command is: write one as a module with a ``COMMAND`` and add its name to ``COMMANDS`` in ``app.py``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pcn.cli.screen import Screen
from pcn.errors import ConfigError, PCNError


class WrongUsageError(PCNError):
    """Flags are missing, do not go together or have values that nothing could do with: exit code 2."""


@contextmanager
def wrong_usage() -> Iterator[None]:
    """Read values that would be refused whatever the model is: what is wrong with them is wrong usage."""
    try:
        yield
    except ConfigError as error:
        raise WrongUsageError(str(error)) from error


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
