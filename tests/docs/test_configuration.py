"""The configuration reference says what the code says."""

from __future__ import annotations

import runpy
from dataclasses import fields
from pathlib import Path

import pcn
from pcn.training import Settings

DOCS = Path(__file__).parents[2] / "docs"


def test_it_is_up_to_date() -> None:
    made = runpy.run_path(str(DOCS / "make_configuration.py"))["page"]()
    written = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert written == made, "the code has changed: python docs/make_configuration.py"


def test_it_names_and_explains_every_field() -> None:
    rows = [line.split(" | ") for line in (DOCS / "configuration.md").read_text(encoding="utf-8").splitlines()]
    explained = {row[0].removeprefix("| ").strip("`") for row in rows if len(row) == 4 and row[3].strip("| ")}
    asked = {
        each.name
        for cls in (pcn.PCNConfig, pcn.LayerRule, pcn.Budget, pcn.Switch, Settings)
        for each in fields(cls)
        if each.init
    }
    assert asked - explained == set()
