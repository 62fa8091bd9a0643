"""Notebooks show statistics and plans as one HTML table that cannot run anything and needs nothing from outside."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import pcn
from pcn import LayerRule, PCNConfig, Plan, Statistics
from small import conv_net, images

HOSTILE = '<img src=x onerror="alert(1)">&"'


class Hostile(nn.Module):
    """Has a layer with a name that would run a script in a page that does not escape it."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module(HOSTILE, nn.Linear(40, 60))
        self.add_module("after", nn.Linear(60, 60))
        self.add_module(f"norm{HOSTILE}", nn.LayerNorm(60))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            x = layer(x)
        return x


class Seen(HTMLParser):
    """Every tag with its attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def hostile() -> tuple[Statistics, Plan]:
    model = Hostile()
    stats = pcn.analyze(model, [torch.randn(300, 5) @ torch.randn(5, 40)])
    return stats, pcn.make_plan(model, stats)


@pytest.mark.parametrize("index", [0, 1], ids=["statistics", "plan"])
def test_a_hostile_name_is_shown_and_does_nothing(index: int) -> None:
    seen = Seen(hostile()[index]._repr_html_())
    assert seen.open == []
    assert HOSTILE in seen.text
    assert f"norm{HOSTILE}" in seen.text  # among the reasons too
    known = {"div", "p", "br", "table", "thead", "tbody", "tr", "th", "td", "svg", "rect", "polyline", "details"}
    assert {tag for tag, _ in seen.tags} <= known | {"summary", "ul", "li"}
    assert not any(name.startswith("on") or name in ("src", "href") for _, held in seen.tags for name in held)


def test_nothing_comes_from_outside_and_colours_follow_the_notebook() -> None:
    for shown in hostile():
        text = shown._repr_html_()
        assert not re.search(r"https?:|url\(|#[0-9a-fA-F]{3,6}|<style", text)
        assert "currentColor" in text


def test_every_layer_has_its_numbers_and_its_spectrum() -> None:
    model = conv_net()
    stats = pcn.analyze(model, [images()])
    seen = Seen(stats._repr_html_())
    assert sum(tag == "polyline" for tag, _ in seen.tags) == len(stats.layers)
    rows = [line.split()[0] for line in str(stats).splitlines()[3 : 3 + len(stats.layers)]]
    assert all(name in seen.text for name in rows)
    assert "directions by ExplainedVariance(share=0.95)" in seen.text


def test_the_kept_part_of_the_spectrum_is_shaded() -> None:
    stats = pcn.analyze(nn.Sequential(nn.Linear(10, 30), nn.Linear(30, 30)), [torch.randn(500, 10)])
    shaded = [float(held["width"] or 0) for tag, held in Seen(stats._repr_html_()).tags if tag == "rect"]
    assert shaded[1] == pytest.approx(120 * stats.spectrum("1").count_explaining(0.95) / 30, abs=0.1)


def test_a_plan_shows_what_is_kept_as_a_bar() -> None:
    model = conv_net()
    rules = {"conv2": LayerRule(rank=2), "fc1": LayerRule(rank=16)}
    plan = pcn.make_plan(model, None, PCNConfig(rank=None, layers=rules, skip_larger=False))
    bars = [float(held["width"] or 0) for tag, held in Seen(plan._repr_html_()).tags if tag == "rect"]
    assert bars == [80, 80 * 2 / 8, 80, 80 * 16 / 32]


def test_what_is_not_known_and_what_changes_nothing_is_said() -> None:
    few = pcn.analyze(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), [torch.randn(1, 4)])
    assert "not known" in few._repr_html_()
    assert "1 sample was seen" in few._repr_html_()
    nothing = pcn.make_plan(conv_net(), None, PCNConfig(rank=None))
    assert Seen(nothing._repr_html_()).text.startswith("nothing changes")


def test_dead_inputs_have_no_picture() -> None:
    stats = pcn.analyze(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), [torch.zeros(9, 4)])
    assert "<polyline" not in stats._repr_html_()
