"""Print benchmarks/results/step_time.json and step_time_cpu.json as the tables that stand in docs/performance.md.

python benchmarks/step_time_table.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from markdown_tables import markdown

RESULTS = Path(__file__).parent / "results" / "step_time.json"
CPU_RESULTS = RESULTS.with_stem("step_time_cpu")
NOTHING = "Not measured yet: there is no `benchmarks/results/step_time.json`."
Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]


def _number(key: str, digits: int, factor: float = 1.0) -> Callable[[Row], str]:
    return lambda row: "" if row.get(key) is None else f"{row[key] * factor:.{digits}f}"


def _text(key: str) -> Callable[[Row], str]:
    return lambda row: str(row[key])


RECORDS: list[Column] = [
    ("network", _text("network")),
    ("batch", _text("batch")),
    ("parent, ms", _number("parent_ms", 2)),
    ("with our batch norm", _number("parent_our_bn_ms", 2)),
    ("narrow, ms", _number("narrow_ms", 2)),
    ("PCN, ms", _number("pcn_ms", 2)),
    ("PCN / parent", _number("ratio", 3)),
    ("floor, ms", _number("floor_ms", 2)),
    ("peak, MiB: parent", _number("parent_peak_mib", 0)),
    ("PCN", _number("pcn_peak_mib", 0)),
    ("J per step: parent", _number("parent_energy_j", 3)),
    ("PCN", _number("pcn_energy_j", 3)),
]
UNFUSED: list[Column] = [
    ("network", _text("network")),
    ("batch", _text("batch")),
    ("parent, ms", _number("parent_ms", 2)),
    ("PCN without fusion, ms", _number("unfused_ms", 2)),
    ("PCN / parent", _number("ratio", 3)),
]
WAYS = {
    "eager": "not compiled, ms",
    "whole": "as a whole, ms",
    "blocks": "block by block, ms",
    "combined": "small kernels put together, ms",
    "tuned": "as a whole, its kernels tuned, ms",
}
ROLES = {
    "parent": "",
    "parent_our_bn": ", with our batch norm",
    "narrow": ", half the width",
    "pcn": "",
    "pcn_unfused": ", without fusion",
}
KERNELS: list[Column] = [
    ("kernel", _text("kernel")),
    ("width → rank", lambda row: f"{row['width']} → {row['rank']}"),
    ("rows", lambda row: f"{row['rows']:,}"),
    ("µs", _number("time_us", 1)),
    ("MiB", _number("mib", 0)),
    ("share of a copy's speed (%)", _number("share_of_copy", 0, 100.0)),
    ("a copy of as much, µs", _number("copy_us", 1)),
    ("PyTorch's own, µs", _number("library_us", 1)),
]


def tables(path: Path = RESULTS) -> str:
    """The steps of the networks and the kernels alone; or that nothing was measured."""
    if not path.exists():
        return NOTHING
    found = json.loads(path.read_text())
    machine = found["machine"]
    head = (
        f"`benchmarks/step_time.py`, {machine['device']}, torch {machine['torch']}, a copy moves "
        f"{machine['copy_bytes_per_s'] / 1e12:.2f} TB/s:"
    )
    records, unfused, kernels = (
        table(columns, found[kind]) if found[kind] else ""
        for kind, columns in (("records", RECORDS), ("unfused", UNFUSED), ("kernels", KERNELS))
    )
    parts = (head, records, ways_table(found.get("ways", [])), unfused, kernels)
    return "\n\n".join(part for part in parts if part)


def ways_table(rows: list[Row]) -> str:
    """Milliseconds by how the step is compiled, of what has run with tuned launches, or not compiled, too."""
    held = {(row["network"], row["role"], row["batch"], row["way"]): row["ms"] for row in rows}
    tried = list(dict.fromkeys(key[:3] for key in held if {(*key[:3], "tuned"), (*key[:3], "eager")} & held.keys()))
    names = [way for way in WAYS if any((*each, way) in held for each in tried)]

    def shown(network: str, role: str, batch: int) -> list[str]:
        ms = (held.get((network, role, batch, way)) for way in names)
        return [network + ROLES[role], str(batch), *("" if each is None else f"{each:.2f}" for each in ms)]

    head = ["network", "batch", *(WAYS[way] for way in names)]
    return markdown(head, (shown(*each) for each in tried)) if tried else ""


def table(columns: list[Column], rows: list[Row]) -> str:
    return markdown([name for name, _ in columns], ([show(row) for _, show in columns] for row in rows))


if __name__ == "__main__":
    print(tables())
    if CPU_RESULTS.exists():
        print(f"\n{tables(CPU_RESULTS)}")
