"""Reading the command line, and turning errors into one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import pcn
from pcn.cli import counts, demo, train
from pcn.cli.command import Command
from pcn.cli.screen import Screen
from pcn.errors import PCNError

COMMANDS: tuple[Command, ...] = (demo.COMMAND, train.COMMAND, counts.COMMAND)

DESCRIPTION = "Principal Component Networks: make a wide PyTorch model small in the middle of its training."
EXIT_CODES = "exit codes: 0 done, 1 could not be done, 2 wrong usage, 130 interrupted"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        arguments.command.run(arguments, Screen(json=arguments.json))
        sys.stdout.flush()
    except PCNError as error:
        if arguments.debug:
            raise
        print(f"pcn: error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        print("pcn: stopped", file=sys.stderr)  # noqa: T201
        return 130
    except BrokenPipeError:
        # The reader has gone (`pcn counts | head`): leave without a word, and give the interpreter's last flush a sink.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if arguments.debug:
            raise
        said = " ".join(str(error).split())  # one line, whatever a model or a library raised
        print(f"pcn: error: {type(error).__name__}: {said} (--debug shows where)", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of every command in ``COMMANDS``."""
    parser = argparse.ArgumentParser("pcn", description=DESCRIPTION, epilog=EXIT_CODES, formatter_class=_Formatter)
    parser.add_argument("--version", action="version", version=f"pcn {pcn.__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=_examples(command),
            formatter_class=_Formatter,
        )
        command.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print JSON and nothing else")
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        sub.set_defaults(command=command)
    return parser


def _examples(command: Command) -> str:
    return "examples:\n" + "\n".join(f"  {example}" for example in command.examples)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Examples keep their lines."""
