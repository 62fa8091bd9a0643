"""Printed statistics say which layers are too wide."""

import torch
from torch import nn

from pcn.config import PCNConfig
from pcn.rank_rules import Threshold
from pcn.statistics import analyze, forms


def make_statistics(count=200):
    model = nn.Sequential(nn.Linear(3, 64), nn.LayerNorm(64), nn.Linear(64, 32), nn.Linear(32, 8))
    return analyze(model, [torch.randn(count, 3)])


def test_the_table_answers_which_layers_are_too_wide():
    statistics = make_statistics()
    lines = str(statistics).splitlines()
    assert lines[0] == f"directions by {PCNConfig().rank}"
    assert lines[2].split() == ["layer", "width", "directions", "trainable", "would", "save"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[3:7]}
    directions = statistics.spectrum("2").count_explaining(0.95)
    before, after = 64 * 32 + 32, directions * 32 + 32
    assert rows["2"] == [
        "64", str(directions), f"{before:,}", f"{before - after:,}", f"{(before - after) / before:.0%}", "<-", "most"
    ]  # fmt: skip
    assert rows["all"][0] == f"{3 * 64 + 64 + 64 * 32 + 32 + 32 * 8 + 8:,}"
    assert [line.split()[0] for line in lines[3:7]] == ["0", "2", "3", "all"]
    assert lines[-2:] == ["left alone:", "  1: LayerNorm is not a Linear, Conv1d, Conv2d or Conv3d"]
    assert sum("most" in line for line in lines) == 1


def test_no_bias_is_counted_where_none_would_be_gained():
    statistics = analyze(nn.Sequential(nn.Linear(64, 32, bias=False)), [torch.randn(200, 64) * 0.1 + 3])
    about_zero = statistics.about_zero(["0"])
    for each, biases in ((statistics, 32), (about_zero, 0)):
        directions, trainable, saved = (str(each).splitlines()[3].split()[at] for at in (2, 3, 4))
        expected = 64 * 32 - 32 * int(directions) - biases if each is about_zero else 0  # nearly all directions alike
        assert (trainable, saved) == ("2,048", f"{expected:,}")


def test_columns_are_aligned():
    lines = str(make_statistics()).splitlines()[2:6]
    ends = [line.index(word) + len(word) for line, word in zip(lines, ("width", " 3", " 64", " 32"), strict=True)]
    assert len(set(ends)) == 1


def test_any_rule_may_be_asked():
    statistics = make_statistics()
    assert statistics.table(0.5).splitlines()[4].split()[2] == "32"
    assert statistics.table(Threshold(1e9)).splitlines()[4].split()[2] == "1"
    assert statistics.table(10**6).splitlines()[4].split()[2] == "64"


def test_what_is_not_known_is_said():
    lines = str(make_statistics(count=1)).splitlines()
    assert lines[4].split()[2] == "?"
    assert (
        "  0, 2, 3: 1 sample was seen, but a covariance needs at least 2: give more batches, or exclude this" in lines
    )


def test_a_sketch_that_is_too_small_is_said(monkeypatch):
    monkeypatch.setattr(forms, "COVARIANCE_WIDTH", 10)
    monkeypatch.setattr(forms, "LARGEST_COVARIANCE", 10)
    model = nn.Sequential(nn.Linear(80, 80), nn.Linear(80, 4))
    text = str(analyze(model, [torch.randn(500, 80)], max_rank=2))
    assert "give analyze a larger max_rank" in text


def test_many_names_with_one_reason_are_cut_short():
    model = nn.Sequential(*(layer for _ in range(7) for layer in (nn.Linear(3, 3), nn.LayerNorm(3))))
    last = str(analyze(model, [torch.randn(9, 3)])).splitlines()[-1]
    assert last == "  1, 3, 5, 7 and 3 more: LayerNorm is not a Linear, Conv1d, Conv2d or Conv3d"


def test_groups_are_shown():
    model = nn.Sequential(nn.Conv1d(6, 6, 1, groups=2), nn.Conv1d(6, 6, 1))
    assert str(analyze(model, [torch.randn(4, 6, 5)])).splitlines()[3].split()[1:4] == ["2", "x", "3"]
