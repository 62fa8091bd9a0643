"""Reading the command line, and turning errors into one line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

import pcn
from pcn.cli.command import Command, WrongUsageError
from pcn.cli.screen import Screen, in_flags
from pcn.errors import PCNError, suggest

COMMANDS = {  # each is a module of this package with a COMMAND; only the one that is asked for is imported
    "demo": "the paper's four steps on scikit-learn's digits",
    "analyze": "say which layers of a model are wider than what they read",
    "plan": "say what a switch would do, before anything is changed",
    "compress": "turn a model into its principal component network",
    "train": "train a model and switch it on the way",
    "report": "make one HTML page about a run, with a slider for the threshold",
    "export": "write a model for ONNX, torch.export or its original architecture",
    "counts": "count the parameters of the paper's networks",
}

ALIASES = {  # what other tools call a flag
    "--lr": "--learning-rate",
    "--lrate": "--learning-rate",
    "--wd": "--weight-decay",
    "--decay": "--weight-decay",
    "--bs": "--batch",
    "--batch-size": "--batch",
    "--opt": "--optimizer",
    "--optim": "--optimizer",
    "--num-epochs": "--epochs",
    "--random-seed": "--seed",
    "--dataset": "--data",
    "--data-root": "--data-dir",
    "--checkpoint": "--weights",
    "--ckpt": "--weights",
    "--gpu": "--device",
    "--cuda": "--device",
    "--output": "--out",
    "--output-dir": "--out",
}
DESCRIPTION = "Principal Component Networks: make a wide PyTorch model small in the middle of its training."
EXIT_CODES = "exit codes: 0 done, 1 could not be done, 2 wrong usage, 130 interrupted"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in given
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.showwarning = _show_warning
            parser = build_parser(given[:1])
            if given and not given[0].startswith("-") and given[0] not in COMMANDS:
                known = suggest(given[0], COMMANDS) or f"; there are {', '.join(COMMANDS)}"
                parser.error(f"there is no command {given[0]}{known}")
            arguments, unknown = parser.parse_known_args(given)
            if unknown:
                arguments.refuse(unknown[0])
            arguments.command.run(arguments, Screen(json=arguments.json))
            sys.stdout.flush()
    except PCNError as error:
        if debug:
            raise
        _say(f"error: {in_flags(str(error))}")
        return 2 if isinstance(error, WrongUsageError) else 1
    except KeyboardInterrupt:
        _say("stopped")
        return 130
    except BrokenPipeError:
        # The reader has gone (`pcn counts | head`): leave without a word, and give the interpreter's last flush a sink.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if debug:
            raise
        _say(f"error: {type(error).__name__}: {error} (--debug shows where)")
        return 1
    return 0


def build_parser(asked: Sequence[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Build the parser, with the flags of the commands that are asked for."""
    parser = _Parser("pcn", description=DESCRIPTION, epilog=EXIT_CODES, formatter_class=_Formatter, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"pcn {pcn.__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if name not in asked:
            subparsers.add_parser(name, help=summary)
            continue
        command: Command = importlib.import_module(f"pcn.cli.{name}").COMMAND
        sub = subparsers.add_parser(
            name,
            help=summary,
            description=command.description,
            epilog=_examples(command),
            formatter_class=_Formatter,
            allow_abbrev=False,  # what is said is what is meant: a short form may come to mean another flag
        )
        command.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print JSON and nothing else")
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        sub.set_defaults(command=command, refuse=sub.refuse)
        sub.usage = _usage(sub)
    return parser


def _usage(parser: argparse.ArgumentParser) -> str:
    """The arguments that must be given; the others are listed below it."""
    exclusive = [group._group_actions for group in parser._mutually_exclusive_groups if group.required]
    named = [f"({' | '.join(map(_flag, actions))})" for actions in exclusive]
    named += [_flag(action) for action in parser._actions if action.required and action.option_strings]
    places = [action for action in parser._actions if not action.option_strings]
    named += [f"{action.metavar}" if action.required else f"[{action.metavar}]" for action in places]
    return " ".join([parser.prog, *named, "[flags]"])


def _flag(action: argparse.Action) -> str:
    return f"{action.option_strings[0]} {action.metavar or '|'.join(action.choices or ())}"


def _say(line: str) -> None:
    """One line, whatever a model or a library raised."""
    print("pcn:", " ".join(line.split()), file=sys.stderr)  # noqa: T201


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    _say(f"warning: {message}")


def _examples(command: Command) -> str:
    return "examples:\n" + "\n".join(f"  {example}" for example in command.examples)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Examples keep their lines."""


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, and where the rest is explained."""

    def refuse(self, argument: str) -> NoReturn:
        flags = [flag for action in self._actions for flag in action.option_strings]
        given = argument.partition("=")[0]
        begun = [flag for flag in flags if flag.startswith(given)] if given.strip("-") else []
        meant = [flag for flag in [ALIASES.get(given.replace("_", "-")), *sorted(begun, key=len)] if flag in flags]
        known = f"; did you mean {meant[0]!r}?" if meant else suggest(given, flags)
        self.error(f"there is no argument {given}{known}")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())} ({self.prog} --help says what there is)\n")
