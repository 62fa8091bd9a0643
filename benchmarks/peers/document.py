"""The parts of the documentation that are made from results, from ``<!-- name -->`` to ``<!-- end of name -->``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from peers import BENCHMARKS
from peers.report import drawn, tables
from peers.results import Results

ROOT = BENCHMARKS.parent
PARTS = {  # each part's document
    "comparison": ROOT / "docs" / "comparison.md",
    "search": ROOT / "docs" / "trials.md",
    "short comparison": ROOT / "README.md",
}


def comparison_part(results: Results) -> str:
    """All tables, and a figure for every parent and length."""
    figures = [
        f"![{parent}, {epochs} epochs: accuracy against parameters, FLOPs and seconds]({figure_name(parent, epochs)})"
        for parent, epochs in drawn(results)
    ]
    return "\n\n".join([*tables(results), *figures])


def figure_name(parent: str, epochs: int) -> str:
    return f"figures/peers_{parent}_{epochs}.svg"


def made_anew(parts: Mapping[str, str]) -> dict[Path, str]:
    """The text of every document that has one of these parts."""
    documents = dict.fromkeys(PARTS[name] for name in parts)
    own = {each: {name: part for name, part in parts.items() if PARTS[name] == each} for each in documents}
    return {document: with_parts(document.read_text(), found) for document, found in own.items()}


def with_parts(text: str, parts: Mapping[str, str]) -> str:
    """The document with its parts made anew.

    >>> with_parts("<!-- a -->old<!-- end of a -->", {"a": "new"}).split()
    ['<!--', 'a', '-->', 'new', '<!--', 'end', 'of', 'a', '-->']
    """
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"the document has no part {begin} ... {end}")
        text = f"{before}{begin}\n\n{part}\n\n{end}{after}"
    return text
