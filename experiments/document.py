"""Bring docs/reproduction.md up to date: its tables from the results, and the figures drawn from them.

    python experiments/document.py

After a line <!-- table NAME --> stands a table, or that there are no results yet; after a line <!-- figure NAME: what
it shows --> a figure, where it could be drawn. The words in between are written by people.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from plots import FIGURES, draw
from table import RESULTS, TABLES, table

ROOT = Path(__file__).parents[1]
DOCUMENT, BENCHMARK = ROOT / "docs" / "reproduction.md", ROOT / "benchmarks" / "results" / "imagenet.json"

MISSING = ": **not run yet**."


def with_tables(text: str, results: Path = RESULTS) -> str:
    for name in TABLES:
        there = (results / f"{name}.json").exists()
        text = with_table(text, name, table(name, results) if there else f"`experiments/{name}.py`{MISSING}")
    return text


def with_table(text: str, name: str, new: str) -> str:
    mark = f"<!-- table {name} -->\n"
    earlier = rf"(?:\n`\w+/{name}\.py`[,:][^\n]*\n(?:\n(?:\|[^\n]*\n)+)*)?"
    return re.sub(re.escape(mark) + earlier, lambda _: f"{mark}\n{new}\n", text)


def benchmark_table() -> str:
    if not BENCHMARK.exists():
        return f"`benchmarks/imagenet.py`{MISSING}"
    sys.path.append(str(ROOT / "benchmarks"))
    import imagenet_table

    return imagenet_table.table()


def with_figures(text: str, figures: Path = FIGURES) -> str:
    def shown(found: re.Match[str]) -> str:
        mark, name, what = found[1], found[2], found[3]
        return f"{mark}\n![{what}](figures/{name}.svg)\n" if (figures / f"{name}.svg").exists() else mark

    return re.sub(r"(<!-- figure (\w+): (.*) -->\n)(?:\n!\[[^\n]*\n)?", shown, text)


def main() -> None:
    print("drawn:", ", ".join(draw(RESULTS, FIGURES)) or "nothing")
    text = with_figures(with_tables(DOCUMENT.read_text()))
    DOCUMENT.write_text(with_table(text, "imagenet", benchmark_table()))


if __name__ == "__main__":
    main()
