"""What statistics answer, and how those of parts come together."""

import numpy as np
import pytest
import torch
from torch import nn

from pcn.errors import ConfigError, StatisticsError
from pcn.statistics import Statistics, analyze, forms


def make_model():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, groups=1), nn.ReLU(), nn.Conv2d(8, 6, 3, groups=2), nn.Flatten(), nn.Linear(96, 2)
    )


def test_two_halves_merged_equal_the_whole():
    model = make_model()
    batches = [torch.randn(6, 3, 8, 8) + shift for shift in (0.0, 2.0, -1.0)]
    whole = analyze(model, batches)
    parts = [analyze(model, [batch]) for batch in batches]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    assert merged.layers == whole.layers
    assert merged.left_alone == whole.left_alone
    for name in whole.layers:
        assert merged.samples(name) == whole.samples(name)
        torch.testing.assert_close(merged.mean(name), whole.mean(name), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(merged.covariance(name), whole.covariance(name), rtol=1e-5, atol=1e-6)
        a, b = merged.spectrum(name), whole.spectrum(name)
        assert a.count_explaining(0.9) == b.count_explaining(0.9)
    assert parts[0].samples("0") == 6 * 64


class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.extra = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, which):
        y = (self.left if which == "left" else self.right)(x)
        return y + self.extra(x if which == "left" else x + 1)


def routed(which):
    return analyze(Routed(), [0], forward=lambda model, _: model(torch.ones(3, 4).normal_(), which))


def test_layers_seen_by_one_part_only():
    left, right = (routed(which) for which in ("left", "right"))
    assert left.layers == {"left": "left", "extra": "left"}
    assert right.layers == {"right": "right", "extra": "extra"}
    with pytest.raises(StatisticsError, match=r"'extra' shares its input with \['extra', 'left'\] on one side"):
        left.merge(right)
    both = right.merge(analyze(Routed(), [0], forward=lambda m, _: m(torch.randn(2, 4), "left"), exclude="extra"))
    assert both.layers == {"left": "left", "right": "right", "extra": "extra"}
    assert both.left_alone == {}
    assert (both.samples("left"), both.samples("right")) == (2, 3)


def make_chain(middle=20):
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, middle), nn.ReLU(), nn.Linear(middle, 4))


def test_a_merge_keeps_the_layers_of_either_side_whichever_comes_first(tmp_path):
    model = make_chain()
    some = analyze(model, [torch.randn(50, 6)], exclude="2", gradients=True)
    all_three = analyze(model, [torch.randn(70, 6)], gradients=True)
    for merged in (some.merge(all_three), all_three.merge(some)):
        assert list(merged.layers) == list(merged.shapes) == ["0", "2", "4"]
        assert merged.gradients.keys() == merged.layers.keys()
        assert [merged.samples(name) for name in merged.layers] == [120, 70, 120]
        assert merged.left_alone == {}
        merged.save(tmp_path / "stats")
        read = Statistics.load(tmp_path / "stats")
        assert (read.layers, read.shapes, read.remarks) == (merged.layers, merged.shapes, merged.remarks)


def test_layers_analyzed_apart_come_together_and_it_is_said():
    model, batch = make_chain(), torch.randn(50, 6)
    apart = analyze(model, [batch], layers="0").merge(analyze(model, [batch], layers=["2", "4"]))
    whole = analyze(model, [batch])
    assert (apart.layers, apart.left_alone) == (whole.layers, whole.left_alone)
    for name in whole.layers:
        assert torch.equal(apart.covariance(name), whole.covariance(name))
    said = "measured in a part of the passes only (not among the layers asked for in another)"
    assert apart.remarks == dict.fromkeys(apart.layers, said)
    assert said in str(apart)
    assert said in apart._repr_html_()
    assert apart.merge(whole).remarks == apart.remarks
    assert whole.remarks == whole.merge(whole).remarks == {}


def test_layers_of_other_sizes_do_not_merge():
    one, another = (analyze(make_chain(middle), [torch.randn(50, 6)], exclude="4") for middle in (20, 31))
    with pytest.raises(
        StatisticsError, match=r"'2' has .* \(20, 20, 1, 1, True\) on one side and \(20, 31, 1, 1, True"
    ):
        one.merge(another)


def test_inputs_that_were_averaged_do_not_merge_with_others(tmp_path):
    model, batch = make_model(), torch.randn(6, 3, 8, 8)
    plain, one, two = (analyze(model, [batch], pool=pool) for pool in (None, 1, 2))
    two.save(tmp_path / "stats")
    for pooled in (two, Statistics.load(tmp_path / "stats")):
        assert pooled.merge(two).pool == 2
        for other in (plain, one):
            with pytest.raises(StatisticsError, match="pool=2, the other with pool="):
                pooled.merge(other)
    assert plain.merge(one).samples("0") == 2 * plain.samples("0")


def test_bases_of_any_rank_are_orthonormal():
    model = nn.Sequential(nn.Linear(5, 40), nn.Linear(40, 3))
    statistics = analyze(model, [torch.randn(8, 5)])
    for rank in (1, 7, 8, 40):
        basis = statistics.basis("1", rank)
        torch.testing.assert_close(basis.T @ basis, torch.eye(rank, dtype=torch.float64), rtol=0, atol=1e-12)
    with pytest.raises(ConfigError, match=r"41 directions .* '1', which has 40 channels"):
        statistics.basis("1", 41)


def test_the_basis_of_a_grouped_convolution_stands_in_its_rows():
    statistics = analyze(make_model(), [torch.randn(6, 3, 8, 8)])
    basis, (_, components) = statistics.basis("2", 3), statistics.spectrum("2").leading(3)
    assert basis.shape == (8, 3)
    assert torch.equal(basis[:4], components[0])
    assert torch.equal(basis[4:], components[1])
    with pytest.raises(ConfigError, match="4 channels in each of 2 groups"):
        statistics.basis("2", 5)


def test_the_basis_of_kept_inputs_comes_from_their_block():
    statistics = analyze(make_model(), [torch.randn(6, 3, 8, 8)])
    kept = torch.tensor([0, 2, 3, 4, 6, 7])
    basis, variances = statistics.block_basis("2", kept, 2)
    assert basis.shape == (6, 2)
    for group, index in enumerate(([0, 2, 3], [0, 2, 3])):
        block = statistics.covariance("2")[group][index][:, index]
        part = basis[3 * group : 3 * group + 3]
        values = torch.linalg.eigvalsh(block).flip(0)[:2]
        torch.testing.assert_close(block @ part, part * values, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(variances[group], values)
    for tensor in statistics.block_basis("2", kept, 4):
        assert not tensor[:, 3].any()


def test_spectra_are_made_once_for_each_activation():
    model = nn.ModuleDict({"q": nn.Linear(4, 4), "k": nn.Linear(4, 4)})
    model.forward = lambda x: model["q"](x) + model["k"](x)
    statistics = analyze(model, [torch.randn(9, 4)])
    assert statistics.spectrum("q") is statistics.spectrum("k")


def test_unknown_layers_and_layers_left_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    statistics = analyze(model, [torch.randn(5, 3)])
    with pytest.raises(ConfigError, match="'1' was not measured: LayerNorm is not"):
        statistics.mean("1")
    with pytest.raises(ConfigError, match="no statistics of 'fc'"):
        statistics.mean("fc")


def test_results_equal_numpy_for_a_whole_model():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    batch = torch.randn(100, 3)
    statistics = analyze(model, batch.split(30))
    hidden = torch.tanh(model[0](batch)).detach().double().numpy()
    np.testing.assert_allclose(statistics.mean("2"), hidden.mean(0), atol=1e-6)
    np.testing.assert_allclose(statistics.covariance("2")[0], np.cov(hidden, rowvar=False), atol=1e-6)


def test_merged_layers_stand_as_in_the_model():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), torch.randn(9, 4)
    one, other = analyze(model, [x], exclude="0"), analyze(model, [x], exclude="4")
    assert list(one.merge(other).layers) == list(other.merge(one).layers) == ["0", "2", "4"]


def both_read(width=8):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (nn.Linear(width, 3) for _ in range(2))

        def forward(self, x):
            return self.first(x) + self.second(x)

    return analyze(Both(), [torch.randn(40, width) + 3])


def test_what_is_known_about_zero_is_worked_out_once_and_shared():
    stats = both_read()
    about, second = stats.about_zero(["first", "second"]), stats.about_zero(["second"])
    assert about.layers == stats.layers
    assert second.layers == {"first": "first", "second": "second"}
    assert about.about_zero(["first"]) is about
    assert second.about_zero(["first"]).layers == about.layers
    assert second.spectrum("first") is stats.spectrum("first")
    assert second.spectrum("second") is about.spectrum("second") is about.spectrum("first")
    assert second.spectrum("second") is not stats.spectrum("second")
    held = {each.scatter.data_ptr() for of in (stats, about, second) for each in of.moments.values()}
    assert len(held) == 1


@pytest.mark.parametrize("width", [8, 60])
def test_statistics_about_zero_are_neither_saved_nor_merged(width, tmp_path, monkeypatch):
    """A file, and the other side, would have them about the mean."""
    monkeypatch.setattr(forms, "COVARIANCE_WIDTH", 16)
    stats = both_read(width)
    about = stats.about_zero(["second"])
    with pytest.raises(StatisticsError, match="statistics about zero, as 'second' has, cannot be saved"):
        about.save(tmp_path / "stats.safetensors")
    for one, other in ((about, stats), (stats, about), (about, about)):
        with pytest.raises(StatisticsError, match="cannot be merged: take those that about_zero was asked of"):
            one.merge(other)
