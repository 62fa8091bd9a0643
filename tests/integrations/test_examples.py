"""The examples run as they stand, in an empty folder, and end with a small network that has learned something."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LEAST = {"hf_trainer": 70.0}  # percent; a transformer needs more data than that


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # raised inside torch.onnx and Lightning
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [name])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    results = re.findall(r"([\d,]+) trained parameters, test accuracy ([\d.]+)%", printed)
    assert float(results[-1][1]) >= LEAST.get(name, 95.0), printed
    assert int(results[-1][0].replace(",", "")) < 60_000
