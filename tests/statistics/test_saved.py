"""Statistics from a file answer as those that were saved, in every form, and a damaged file is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import pcn
from pcn import FileError, PCNConfig, Statistics
from pcn.statistics import forms
from small import ConvNet, Mlp, images, vectors


def saved_and_read(stats: Statistics, folder: Path) -> Statistics:
    stats.save(folder / "stats.safetensors")
    return Statistics.load(folder / "stats.safetensors")


def test_a_plan_from_the_file_is_the_same_and_so_is_the_model_that_it_makes(tmp_path: Path) -> None:
    model, again = ConvNet().eval(), ConvNet().eval()
    again.load_state_dict(model.state_dict())
    stats = pcn.analyze(model, [images(32)])
    read = saved_and_read(stats, tmp_path)
    assert str(read) == str(stats)
    config = PCNConfig(rank=0.5, keep_outputs=0.75, skip_larger=False)
    plan = pcn.make_plan(model, stats, config).apply_(model, stats)
    assert pcn.make_plan(again, read, config).apply_(again, read) == plan
    batch = images(4)
    assert torch.equal(model(batch), again(batch))


@pytest.mark.parametrize("form", ["Covariance", "Samples", "Sketch"])
def test_every_form_of_moments_comes_back(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if form != "Covariance":
        monkeypatch.setattr(forms, "COVARIANCE_WIDTH", 10)
    if form == "Sketch":
        monkeypatch.setattr(forms, "LARGEST_COVARIANCE", 10)
    model = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 4))
    count = 30 if form == "Samples" else 400
    stats = pcn.analyze(model, [torch.randn(count, 40), torch.randn(5, 40)], max_rank=8)
    assert {type(each).__name__ for each in stats.moments.values()} == {form}
    read = saved_and_read(stats, tmp_path)
    assert read.samples("0") == stats.samples("0")
    assert torch.equal(read.mean("0"), stats.mean("0"))
    for one, other in zip(read.spectrum("0").leading(8), stats.spectrum("0").leading(8), strict=True):
        assert torch.equal(one, other)


def test_what_was_read_merges_with_what_is_measured_later(tmp_path: Path) -> None:
    model = Mlp()
    first, later = pcn.analyze(model, [vectors(100)]), pcn.analyze(model, [vectors(200)])
    read = saved_and_read(first, tmp_path)
    assert torch.equal(read.merge(later).covariance("fc2"), first.merge(later).covariance("fc2"))


def test_the_mode_comes_back_and_statistics_of_two_modes_do_not_mix(tmp_path: Path) -> None:
    model = ConvNet()
    one, another = (pcn.analyze(model, [images(16)], mode=mode) for mode in ("batch", "eval"))
    assert saved_and_read(one, tmp_path).mode == "batch"
    assert one.merge(one).mode == "batch"
    with pytest.raises(pcn.StatisticsError, match="mode 'batch'"):
        one.merge(another)


def test_the_example_comes_back_in_its_form(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(12, 3)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return self.fc(left + right)

    for batch in ({"right": vectors(), "left": vectors()}, ((vectors(), vectors()),)):
        stats = pcn.analyze(Two(), [batch])
        read = saved_and_read(stats, tmp_path)
        assert str(read.example) == str(stats.example)
    own = pcn.analyze(Two(), [vectors()], forward=lambda model, batch: model(batch, batch))
    assert saved_and_read(own, tmp_path).example is None


def damaged(path: Path, **changes: Any) -> None:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    head = json.loads(metadata["statistics"]) | changes
    save_file(load_file(path), path, {**metadata, "statistics": json.dumps(head)})


def test_a_file_without_what_later_code_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "stats.safetensors"
    stats = pcn.analyze(Mlp(), [vectors()])
    stats.save(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    head = json.loads(metadata["statistics"])
    old = {key: value for key, value in head.items() if key not in ("mode", "pool", "remarks")}
    save_file(load_file(path), path, {**metadata, "statistics": json.dumps(old)})
    read = Statistics.load(path)
    assert (read.mode, read.pool, read.remarks) == ("eval", None, {})
    assert read.merge(stats).samples("fc1") == 2 * stats.samples("fc1")


def test_a_file_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stats.safetensors"
    with pytest.raises(FileError, match="cannot read the statistics"):
        Statistics.load(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(FileError, match="cannot read the statistics"):
        Statistics.load(path)
    save_file({"x": torch.ones(3)}, path)
    with pytest.raises(FileError, match="holds no statistics of version 1"):
        Statistics.load(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": {"fc1": "nobody"}},
        {"moments": [{"key": "fc1", "form": "os.system", "groups": 1, "width": 12, "count": 9}]},
        {"moments": [{"key": "fc1", "form": "Covariance", "groups": 3, "width": 4, "count": 9}]},
        {"options": {"unknown": 1}},
        {"shapes": {}},
        {"example": {"kind": "dict", "names": ["a", "b"]}},
        {"layers": None},
        {"pool": "two"},
        {"remarks": 3},
    ],
)
def test_a_damaged_file_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "stats.safetensors"
    pcn.analyze(Mlp(), [vectors()]).save(path)
    damaged(path, **changes)
    with pytest.raises(FileError, match="damaged"):
        Statistics.load(path)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot write the statistics"):
        pcn.analyze(Mlp(), [vectors()]).save(tmp_path / "nowhere" / "stats.safetensors")
