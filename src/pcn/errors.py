"""What can go wrong because of what was given: each error says what that was, what was expected and what to do."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable


class PCNError(Exception):
    """Base of every error that this library raises on purpose."""


class ConfigError(PCNError, ValueError):
    """The configuration asks for something that does not exist or cannot be done."""


class CouplingError(ConfigError):
    """Layers that must keep the same channels are asked to keep different ones."""


class StatisticsError(PCNError):
    """Activations cannot be measured: none were seen, or they are not finite."""


class TraceError(PCNError):
    """The model's graph could not be captured, so no output channel can be dropped safely."""


class PlanError(PCNError):
    """A plan does not fit the model, the statistics or the state in which it is applied."""


class FileError(PCNError):
    """A saved model or plan is missing, damaged or not ours."""


class DataError(PCNError):
    """A data set is missing, damaged or of another kind."""


class CheckpointError(FileError):
    """A run's folder or checkpoint cannot be written, or does not belong to this run."""


def first_line(error: BaseException | None) -> str:
    """What an error says in one line: others, such as a tracer's, go on for pages.

    >>> first_line(ValueError("too wide\\n  in layer 3")), first_line(ValueError())
    ('too wide', 'no message')
    """
    said = "" if error is None else str(error)
    return next(iter(said.strip().splitlines()), "no message")


def file_trouble(error: BaseException) -> str:
    """Why a file cannot be read or written, in one line; its path, which a system's error repeats, is left out.

    >>> file_trouble(FileNotFoundError(2, "No such file or directory", "plan.json"))
    'No such file or directory'
    """
    system = os.strerror(errno.ENOENT) if isinstance(error, FileNotFoundError) else getattr(error, "strerror", None)
    return " ".join(str(system or error or type(error).__name__).split())


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest known name, or an empty string.

    >>> suggest("layer1.0.conv3", ["layer1.0.conv1", "fc"])
    "; did you mean 'layer1.0.conv1'?"
    """
    words = {each.lstrip("-"): each for each in known}  # dashes alone make no flags alike
    word = str(name).lstrip("-")
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.5 if len(word) < 4 else 0.6)
    return f"; did you mean {words[close[0]]!r}?" if close else ""
