"""Print benchmarks/results/imagenet.json as the Markdown tables that stand in docs/reproduction.md.

python benchmarks/imagenet_table.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from markdown_tables import markdown

RESULTS = Path(__file__).parent / "results" / "imagenet.json"
HEAD = ["network", "trainable", "batch", "images per s", "J per image", "peak GiB", "conversion (s)"]


def table(results: Path = RESULTS) -> str:
    """Every network and its PCN; the seconds of the conversion stand beside the parent."""
    found: dict[str, dict[str, Any]] = json.loads(results.read_text())
    rows = []
    for name, reports in found.items():
        rows += [row(each, reports) for each in (name, f"{name}-pcn") if each in reports]
    machine = next(iter(found.values()))["machine"]
    how = f"{machine['device']}, torch {machine['torch']}, {machine['precision']}, {machine['images']}"
    return f"`benchmarks/imagenet.py`, {how}:\n\n{markdown(HEAD, rows)}"


def row(name: str, reports: dict[str, Any]) -> list[str]:
    report = reports[name]
    conversion = None if name.endswith("-pcn") else reports.get("conversion")
    peak, energy_j = report["peak_memory_bytes"], report["energy_j_per_image"]
    return [
        name,
        f"{report['trainable_params']:,}",
        str(report["batch"]),
        f"{report['images_per_s']:,.0f}",
        "" if energy_j is None else f"{energy_j:.3f}",
        "" if peak is None else f"{peak / 2**30:.1f}",
        "" if conversion is None else f"{conversion['total_s']:.1f} ({conversion['samples']:,} images)",
    ]


if __name__ == "__main__":
    print(table())
