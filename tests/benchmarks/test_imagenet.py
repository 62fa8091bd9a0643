"""The ImageNet benchmark runs at tiny size, keeps what it has measured when it is stopped, and prints it as a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _scripts_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_a_parent_its_conversion_and_its_pcn_are_measured(tmp_path: Path) -> None:
    import imagenet
    import imagenet_table

    how = imagenet.How("cpu", batch=4, samples=10, measured_s=0.01, tiny=True)
    for report in imagenet.measure("vgg19", how):
        imagenet.save(tmp_path / "imagenet.json", "vgg19", report)
    found = json.loads((tmp_path / "imagenet.json").read_text())["vgg19"]
    parent, small, conversion = found["vgg19"], found["vgg19-pcn"], found["conversion"]
    assert parent["trainable_params"] > small["trainable_params"]
    assert parent["images_per_s"] == pytest.approx(1000 * 4 / parent["step_ms"])
    assert conversion["samples"] == 10
    assert conversion["total_s"] == pytest.approx(
        sum(conversion[f"{part}_s"] for part in ("looking", "planning", "cutting"))
    )
    shown = imagenet_table.table(tmp_path / "imagenet.json").splitlines()
    assert shown[-1].startswith(f"| vgg19-pcn | {small['trainable_params']:,} | 4 |")
    assert shown[-2].endswith("(10 images) |")


def test_a_network_that_takes_too_long_is_stopped() -> None:
    import imagenet
    import watched

    how = imagenet.How("cpu", batch=4, samples=10, measured_s=1000.0, tiny=True)
    *_, last = watched.watched("vgg19", 1, imagenet.work, "vgg19", how)
    assert last == {"failed": "vgg19: stopped after 1 s"}


def test_the_table_in_the_documentation_is_that_of_the_results() -> None:
    import imagenet_table

    if not imagenet_table.RESULTS.exists():
        pytest.skip("has not been run on a GPU yet")
    assert imagenet_table.table() in (BENCHMARKS.parent / "docs" / "reproduction.md").read_text()
