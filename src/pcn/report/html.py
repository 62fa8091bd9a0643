"""A report as one HTML file that needs nothing else, asks nobody, and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from pcn.errors import FileError
from pcn.whole_files import write_whole

SCRIPTS = ("planner", "formats", "charts", "elements", "overview", "layers", "slider", "page")


def render(report: dict[str, Any]) -> str:
    """The page of a report's data."""
    style = _file("style.css")
    script = "(() => {\n'use strict';\n" + "\n".join(_file(f"{name}.js") for name in SCRIPTS) + "})();\n"
    parts = {
        "policy": (
            f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
            "base-uri 'none'; form-action 'none'"
        ),
        "title": html.escape(report["title"]),
        "style": style,
        "script": script,
        "data": _island(report),
    }
    page = _file("template.html")
    before, *rest = page.split("{{")  # each part is put in once: what it holds is never looked through again
    return before + "".join(parts[name] + text for name, text in (part.split("}}", 1) for part in rest))


def write_report(path: Path | str, report: dict[str, Any]) -> Path:
    """Write a report's page whole, and return where."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, render(report).encode())
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def _island(report: dict[str, Any]) -> str:
    """The data as JSON in which nothing can end the element that it stands in."""
    text = json.dumps(report, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return (files("pcn.report") / name).read_text(encoding="utf-8")
