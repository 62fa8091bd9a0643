"""The site builds without a warning, which a broken link would be, and asks nobody else for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import pcn

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-c",
        "docs",
        "-d",
        folder / "doctrees",
        ".",
        folder / "site",
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    return folder / "site"


def test_every_page_is_there(site: Path) -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    assert [page.name for page in pages if not (site / page.relative_to(ROOT)).with_suffix(".html").exists()] == []
    assert "docs/index.html" in (site / "index.html").read_text(encoding="utf-8")


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loads = re.compile(
        r"""<(?:script|img|iframe|source)[^>]+src=["'](?:https?:)?//|<link[^>]+href=["'](?:https?:)?//"""
    )
    styles = re.compile(r"@import\s+(?:url\()?[\"']?(?:https?:)?//|url\([\"']?(?:https?:)?//")
    assert [page.name for page in site.rglob("*.html") if loads.search(page.read_text(encoding="utf-8"))] == []
    assert [sheet.name for sheet in site.rglob("*.css") if styles.search(sheet.read_text(encoding="utf-8"))] == []


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == pcn.__version__
