"""The ``pcn`` command."""

from pcn.cli.app import main

__all__ = ["main"]
