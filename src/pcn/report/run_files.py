"""Reading what a run has left in its folder, be it finished or not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pcn.errors import ConfigError, FileError, file_trouble
from pcn.plans.plan import Plan
from pcn.training.run_folder import METRICS, PLAN, RESULT, SETTINGS, SPECTRA, parse_metrics
from pcn.training.settings import Settings
from pcn.training.spectra import FORMAT, VERSION, Spectra


@dataclass(frozen=True)
class RunFiles:
    """A run as its folder tells it; None is what it has not come to."""

    settings: Settings
    metrics: list[dict[str, Any]]
    plan: Plan | None
    spectra: Spectra | None
    result: dict[str, Any] | None


def read_run(folder: Path) -> RunFiles:
    """Read a folder that ``pcn train`` has written, or is still writing."""
    if not (folder / SETTINGS).is_file():
        what = "has no settings.json, so it is not the folder of a run" if folder.is_dir() else "is not a folder"
        raise FileError(f"{folder} {what}: give one that pcn train has written, such as runs/conv4-cifar10-0")
    try:
        settings = Settings.from_mapping(_json(folder / SETTINGS) or {})
    except (ConfigError, TypeError) as error:
        raise FileError(f"{folder / SETTINGS} is not of this version: {error}") from error
    text = _text(folder / METRICS)
    plan = _text(folder / PLAN)
    metrics = parse_metrics(text or "")
    if (folder / RESULT).exists() and not any(record["event"] == "epoch" for record in metrics):
        raise FileError(f"{folder / METRICS} holds no epoch of a run that has ended: bring the whole file back")
    return RunFiles(
        settings=settings,
        metrics=metrics,
        plan=None if plan is None else _plan(plan, folder / PLAN),
        spectra=_spectra(folder / SPECTRA),
        result=_json(folder / RESULT),
    )


def _plan(text: str, path: Path) -> Plan:
    try:
        return Plan.from_json(text)
    except FileError as error:
        raise FileError(f"{path} is damaged: {str(error).partition('; ')[0]}; bring the whole file back") from error


def _spectra(path: Path) -> Spectra | None:
    found = _json(path)
    if found is not None and (found.get("format") != FORMAT or found.get("version") != VERSION):
        raise FileError(f"{path} is not a {FORMAT} file of version {VERSION}: use the library that wrote it")
    return found


def _json(path: Path) -> dict[str, Any] | None:
    text = _text(path)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise FileError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise FileError(f"{path} is damaged: it holds no table")
    return found


def _text(path: Path) -> str | None:
    if not path.exists():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read {path}: {file_trouble(error)}") from error
