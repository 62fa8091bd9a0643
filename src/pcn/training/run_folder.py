"""The folder of one run: its settings, plan, metrics, checkpoints and result."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from safetensors.torch import save as serialise
from torch import nn

from pcn.errors import CheckpointError, ConfigError, FileError
from pcn.planner.measured import Measured
from pcn.plans.plan import Plan, get_plan
from pcn.saving.model_folder import WEIGHTS_FILE, save
from pcn.saving.weights import tensors_to_save
from pcn.training.checkpoints import Checkpoints, unwritten
from pcn.training.settings import Settings
from pcn.whole_files import write_whole

SETTINGS, PLAN, METRICS, RESULT, LOCK = "settings.json", "plan.json", "metrics.jsonl", "result.json", ".lock"
SPECTRA, COSTS, REPORT = "spectra.json", "costs.json", "report.html"
MODEL = "model"  # a folder
SET_UP = ("ready", "fused")  # events of making a step, which comes after the checkpoint of as many steps


class RunFolder:
    """Everything that a run leaves behind; one process at a time may write into it."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self._settings = path, settings
        try:
            self._made = [each for each in (path, *path.parents) if not each.exists()]
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"cannot make the run's folder {path}: {error.strerror}") from error
        self._lock = _locked(path / LOCK)
        try:
            self._check_settings()
        except BaseException:
            self.close()
            raise
        self.checkpoints = Checkpoints(path / "checkpoints")
        if self._lock is not None:
            _remove_leftovers(path)

    def begin(self) -> None:
        """Write the settings down: from now on the folder belongs to this run."""
        if not (self.path / SETTINGS).exists():
            write_text(self.path / SETTINGS, self._settings.to_json())

    def _check_settings(self) -> None:
        file = self.path / SETTINGS
        if not file.exists():
            if (self.path / METRICS).exists():
                raise CheckpointError(f"{self.path} holds a run without its {SETTINGS}: choose another folder")
            return
        try:
            earlier = Settings.from_mapping(json.loads(file.read_text()))
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{file} is damaged ({error}): choose another folder") from error
        if names := self._settings.differences(earlier):
            changes = ", ".join(
                f"{name} was {getattr(earlier, name)!r}, now {getattr(self._settings, name)!r}" for name in names
            )
            held = [*(self.path / "checkpoints").glob("*"), *self.path.glob(RESULT)]
            unused = "" if held else ", or delete this one, which holds neither a checkpoint nor a result"
            raise ConfigError(f"{self.path} holds a run with other settings ({changes}): choose another folder{unused}")

    def log(self, record: dict[str, Any]) -> None:
        """Append a line to the metrics."""
        try:
            with (self.path / METRICS).open("a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise unwritten(self.path / METRICS, error) from error

    def metrics(self) -> list[dict[str, Any]]:
        """All lines; one that was cut off when a process was killed is left out."""
        file = self.path / METRICS
        return parse_metrics(file.read_text()) if file.exists() else []

    def forget_after(self, step: int) -> None:
        """Drop the lines of steps that will be done again, and of making one at the step where the run goes on.

        No checkpoint is of before the first step: a run that begins there begins with whatever comes before it.
        """
        if (self.path / METRICS).exists():
            done = [record for record in self.metrics() if record["step"] < step + (record["event"] not in SET_UP)]
            kept = done if step else []
            write_text(self.path / METRICS, "".join(json.dumps(record) + "\n" for record in kept))

    def write_plan(self, plan: Plan) -> None:
        write_text(self.path / PLAN, plan.to_json())

    def costs(self) -> Measured | None:
        """What a step was measured to take when the run began, or None."""
        file = self.path / COSTS
        return _read(file, Measured.from_json) if file.exists() else None

    def write_costs(self, measured: Measured) -> None:
        """Keep what the run's budget is spent by: a resumed one would measure something else."""
        self.begin()
        write_text(self.path / COSTS, measured.to_json())

    def write_spectra(self, spectra: dict[str, Any]) -> None:
        """Keep what the layers' inputs look like, for the report."""
        write_text(self.path / SPECTRA, json.dumps(spectra))

    def write_model(self, model: nn.Module) -> None:
        """Save the weights, and the plan beside them where the model was switched, for :func:`pcn.load`."""
        folder = self.path / MODEL
        try:
            if get_plan(model) is not None:
                save(model, folder)
            else:
                folder.mkdir(exist_ok=True)
                write_whole(folder / WEIGHTS_FILE, serialise(tensors_to_save(model)))
        except (FileError, OSError) as error:
            if isinstance(error, FileError) and error.__cause__ is None:  # what is there is not ours
                raise
            raise unwritten(folder, error.__cause__ or error) from error

    def result(self) -> dict[str, Any] | None:
        """What a run that has ended ended with, or None."""
        file = self.path / RESULT
        return _read(file, json.loads) if file.exists() else None

    def write_result(self, result: dict[str, Any]) -> None:
        write_text(self.path / RESULT, json.dumps(result, indent=2) + "\n")

    def close(self) -> None:
        """Let another process have the folder; one that was made for nothing goes."""
        self._clear()
        if self._lock is not None:
            self._lock.close()

    def _clear(self) -> None:
        """Take the lock's file away, and the folders that were made, where nothing else is in them."""
        with suppress(OSError):
            if [each.name for each in self.path.iterdir()] == [LOCK]:
                (self.path / LOCK).unlink()
            for made in self._made:
                made.rmdir()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _remove_leftovers(path: Path) -> None:
    """Take away what processes that were killed had not written to its end; only whoever holds the lock may."""
    names = (SETTINGS, PLAN, METRICS, RESULT, SPECTRA, COSTS, REPORT)
    files = [file for name in names for file in path.glob(f".[0-9]*-{name}")]
    files += (path / MODEL).glob(f".[0-9]*-{WEIGHTS_FILE}")
    with suppress(OSError):  # they are in nobody's way
        for file in files:
            file.unlink()
        for folder in path.glob(f".{MODEL}.*"):
            shutil.rmtree(folder)


def parse_metrics(text: str) -> list[dict[str, Any]]:
    """Read the lines of a metrics file; one that was cut off is left out."""
    return [record for line in text.splitlines() if (record := _parsed(line)) is not None]


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole, or say why not."""
    try:
        write_whole(path, data)
    except OSError as error:
        raise unwritten(path, error) from error


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(path.read_text())
    except (ValueError, FileError) as error:
        raise CheckpointError(
            f"{path} is damaged ({error}): remove it, and start the same command again to have it written anew"
        ) from error


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _locked(path: Path) -> TextIO | None:
    """Lock a file until the process ends, however that comes."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        file = path.open("w")
    except OSError as error:
        raise CheckpointError(
            f"cannot write into the run's folder {path.parent}: {error.strerror or error}; mend that, or choose another"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_nlink == 0:
            raise BlockingIOError("the process that had it has just taken it away")
    except OSError as error:
        file.close()
        raise CheckpointError(f"another process is writing into {path.parent}: wait for it, or stop it") from error
    return file
