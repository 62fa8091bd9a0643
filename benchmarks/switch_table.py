"""Print benchmarks/results/switch.json as the Markdown table that stands in docs/training.md.

python benchmarks/switch_table.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from markdown_tables import markdown

RESULTS = Path(__file__).parent / "results" / "switch.json"
PARTS = ("statistics", "tracing", "plan", "surgery", "optimizer", "check")
WAYS = {
    "compiled": "compiling again, block by block, empty cache",
    "blocks, warm cache": "the same with a full cache, in a new process",
    "blocks, 1 process": "block by block, one compiling process",
    "whole, tuned, 1 process": "as one graph with tuned kernels, one compiling process",
}


def table(device: str = "cuda") -> str:
    """Seconds of every part, and the same in epochs of the parent."""
    found = {name: by_device[device] for name, by_device in json.loads(RESULTS.read_text()).items()}
    epochs = {name: result["parent"]["epoch_s"] for name, result in found.items()}
    head, lines = ["", *(f"{name}, s (epochs)" for name in found)], []
    for part in (*PARTS, "total"):
        label = "**switch in all**" if part == "total" else part
        lines.append([label, *(cell(found[name]["switch"][f"{part}_s"], epochs[name]) for name in found)])
    lines.append(
        ["first eager step, capture", *(cell(found[name]["eager"]["set_up_s"], epochs[name]) for name in found)]
    )
    for way, label in WAYS.items():
        lines.append([label, *(cell(seconds(found[name], way), epochs[name]) for name in found)])
    lines.append(["parent's epoch", *(f"{epochs[name]:.2f}" for name in found)])
    lines.append(["PCN's epoch, eager", *(f"{found[name]['eager']['epoch_s']:.2f}" for name in found)])
    lines.append(["PCN's epoch, compiled", *(f"{found[name]['compiled']['epoch_s']:.2f}" for name in found)])
    first = next(iter(found.values()))
    how = f"`benchmarks/switch.py`, {first['device']}, torch {first['torch']}, {first['precision']}"
    return f"{how}:\n\n{markdown(head, lines)}"


def seconds(result: dict[str, Any], way: str) -> float | None:
    held = result["compiled"] if way == "compiled" else result.get("compilation", {}).get(way)
    return None if held is None else held["set_up_s"]


def cell(seconds: float | None, epoch_s: float) -> str:
    return "" if seconds is None else f"{seconds:.2f} ({seconds / epoch_s:.2f})"


if __name__ == "__main__":
    print(table())
