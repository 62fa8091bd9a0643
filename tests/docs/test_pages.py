"""What README and docs show runs as it stands there and prints what they say, and their links lead somewhere."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from docs.pages import Block, blocks, run_page
from pcn import errors
from pcn.graph.rules import RULES
from pcn.layers import LAYER_TYPES, TYPE_OF
from pcn.nn.build import LAYERS

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def shown(page: Path) -> list[Block]:
    return blocks(page.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _tables_as_they_were() -> Iterator[None]:
    """A page may add rules and layer types of its own."""
    with patch.dict(RULES), patch.dict(LAYER_TYPES), patch.dict(TYPE_OF), patch.dict(LAYERS):
        yield


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.runs for block in shown(page))], ids=lambda page: page.name
)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    for each in run_page(page, tmp_path):
        assert each.holds, f"{page.name} says\n{each.claim.body}\nbut its block printed\n{each.printed}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_first_example_is_twelve_lines() -> None:
    first = next(block for block in shown(ROOT / "README.md") if block.info == "python")
    assert len([line for line in first.body.splitlines() if line.strip()]) <= 12


def test_every_error_is_explained_by_raising_it() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL))
    kinds = [cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, errors.PCNError)]
    for kind in (kind for kind in kinds if kind is not errors.PCNError):
        raised = re.search(rf"```text raises\n{kind.__name__}: |except pcn.{kind.__name__}", sections[kind.__name__])
        assert raised, f"the section on {kind.__name__} raises none"


def test_the_concepts_name_the_numbers_that_were_computed() -> None:
    page = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    numbers = json.loads((ROOT / "docs" / "figures" / "concepts.json").read_text(encoding="utf-8"))
    named = {f"{value:,}" if isinstance(value, int) else str(value) for value in _leaves(numbers)}
    assert [value for value in named if not re.search(rf"(?<![\d.,]){re.escape(value)}(?!\d)", page)] == []


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _leaves(each)
    else:
        yield value
