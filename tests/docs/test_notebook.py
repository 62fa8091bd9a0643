"""The notebook runs from top to bottom in a process of its own, and is saved with what it showed."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "tour.ipynb"
DISPLAY = "def display(value):\n    print(getattr(value, '_repr_html_', value.__repr__)())\n"  # as a notebook would


def cells() -> list[dict[str, Any]]:
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return [cell for cell in document["cells"] if cell["cell_type"] == "code"]


def as_script(source: str) -> str:
    """A cell as plain Python: the value of an expression at its end is shown."""
    tree = ast.parse(source)
    if isinstance(last := tree.body[-1], ast.Expr):
        last.value = ast.Call(ast.Name("display"), [last.value], [])
    return ast.unparse(ast.fix_missing_locations(tree))


def test_it_runs_from_top_to_bottom(tmp_path: Path) -> None:
    script = tmp_path / "tour.py"
    script.write_text("\n".join([DISPLAY, *(as_script("".join(cell["source"])) for cell in cells())]))
    environment = {**os.environ, "MPLBACKEND": "agg"}
    run = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr
    assert "loaded model gives the same outputs: True" in run.stdout


def test_it_is_saved_as_one_run_left_it() -> None:
    assert [cell["execution_count"] for cell in cells()] == list(range(1, len(cells()) + 1))
    outputs = [output for cell in cells() for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"stream", "display_data", "execute_result"}
    assert not any(str(Path.home()) in json.dumps(output) for output in outputs)
