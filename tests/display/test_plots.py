"""Figures for papers: drawn to PNG, with what they should show, and without touching pyplot's state."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
import torch
from torch import nn

import pcn
from small import conv_net, images

pytest.importorskip("matplotlib")


def png(figure: object) -> bytes:
    held = io.BytesIO()
    figure.savefig(held, format="png", dpi=60)  # type: ignore[attr-defined]
    return held.getvalue()


def is_drawn(data: bytes) -> bool:
    """Whether a picture is more than one colour."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return len(image.convert("L").getcolors() or []) > 10


def statistics() -> pcn.Statistics:
    return pcn.analyze(conv_net(), [images(64)])


def test_spectra_are_drawn_with_what_a_rule_keeps() -> None:
    stats = statistics()
    figure = stats.plot(pcn.Threshold(0.05))
    assert is_drawn(png(figure))
    assert len(figure.axes) == len(stats.layers)
    first = figure.axes[1]  # conv2
    kept = pcn.Threshold(0.05).rank(stats.spectrum("conv2"))
    assert first.get_title() == f"conv2: {kept} of 8"
    spectrum, threshold = first.get_lines()
    values = stats.spectrum("conv2").leading(8)[0][0]
    torch.testing.assert_close(torch.as_tensor(spectrum.get_ydata(), dtype=torch.double), values[values > 0])
    assert list(threshold.get_ydata()) == [0.05, 0.05]


def test_some_layers_may_be_asked_for() -> None:
    stats = statistics()
    assert [axes.get_title().split(":")[0] for axes in stats.plot(layers=["fc1", "conv1"]).axes] == ["fc1", "conv1"]
    with pytest.raises(pcn.ConfigError, match="no statistics of 'fc9'; did you mean 'fc"):
        stats.plot(layers=["fc9"])


def test_a_plan_is_drawn_layer_by_layer() -> None:
    stats = statistics()
    plan = pcn.make_plan(conv_net(), stats, pcn.PCNConfig(rank=0.5, skip_larger=False))
    figure = plan.plot()
    assert is_drawn(png(figure))
    widths, sizes = figure.axes
    count = len(plan.layers)
    assert [label.get_text() for label in widths.get_yticklabels()] == list(plan.layers)
    drawn = [bar.get_width() for bar in widths.patches]
    assert drawn[:count] == [layer.in_features for layer in plan.layers.values()]
    assert drawn[count:] == [layer.width_after * layer.groups for layer in plan.layers.values()]
    assert [bar.get_width() for bar in sizes.patches][-count:] == [p.trainable_after for p in plan.layers.values()]


def test_names_are_no_formulas_and_what_is_not_known_is_said() -> None:
    model = nn.Sequential()
    model.add_module("a$_{x}$", nn.Linear(4, 4))
    model.add_module("b", nn.Linear(4, 4))
    figure = pcn.analyze(model, [torch.randn(1, 4)]).plot()
    png(figure)
    assert figure.axes[0].get_title() == r"a\$_{x}\$"
    assert figure.axes[0].texts[0].get_text() == "not known"


def test_a_notebook_shows_it_and_pyplot_knows_nothing_of_it() -> None:
    import matplotlib.pyplot as plt

    figure = statistics().plot()
    assert is_drawn(figure._repr_png_())
    assert plt.get_fignums() == []


def test_without_matplotlib_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(pcn.PCNError, match="pip install matplotlib"):
        statistics().plot()


def test_matplotlib_is_imported_only_to_plot() -> None:
    code = "import sys, pcn.plans.plan; assert not any(name.startswith('matplotlib') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
