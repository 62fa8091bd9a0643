"""The report in a real browser: the slider gives what the planner gives, and nothing that was not meant to runs."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import torch
from torch import nn

import pcn
from pcn.plans.ranks import stats_for
from pcn.report import of, write_report
from pcn.training import Settings, spectra
from pcn.training.requests import pcn_config
from report.browser import Browser, find_chromium
from report.networks import HOSTILE, hostile, varied

PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine: install it to test the report")
SIDES = {"desktop": False, "phone": True}


@dataclass
class Page:
    """A page, and what it was made from."""

    path: Path
    model: nn.Module
    stats: pcn.Statistics

    def plan(self, config: pcn.PCNConfig) -> pcn.Plan:
        return pcn.make_plan(self.model, self.stats, config, graph=self.graph)

    @cached_property
    def graph(self) -> pcn.ChannelGraph:
        return pcn.trace(self.model, self.stats.example)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PROGRAM is not None
    try:
        found = Browser(PROGRAM)
    except RuntimeError:  # once more: a machine with too much to do may have stopped it
        found = Browser(PROGRAM)
    yield found
    found.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    model, batches = varied()
    stats = pcn.analyze(model, batches, exclude="kept")
    config = pcn.PCNConfig(exclude=("kept",))
    path = tmp_path_factory.mktemp("page") / "report.html"
    return Page(write_report(path, of(stats, pcn.make_plan(model, stats, config), config)), model, stats)


def shown_ranks(browser: Browser) -> dict[str, str]:
    rows = browser.evaluate(
        "[...document.querySelectorAll('.layer')].map((row) => "
        "[row.dataset.layer, (row.querySelector('.try .much') || {}).textContent || 'as it is'])"
    )
    return dict(rows)


def shown_count(browser: Browser, name: str) -> int:
    return int(browser.text(f"#total-{name}").replace(",", ""))


def check_against_planner(browser: Browser, page: Page) -> pcn.Plan:
    """Compare all that the page shows with the plan of the configuration that it hands back."""
    config = eval(browser.text("#python"), {"pcn": pcn})
    plan = page.plan(config)
    ranks = {
        name: "as it is" if layer.rank is None else f"{layer.rank} of {layer.in_features // layer.groups:,}"
        for name, layer in plan.layers.items()
    }
    assert shown_ranks(browser) == ranks
    assert shown_count(browser, "trainable") == plan.trainable_after
    assert shown_count(browser, "stored") == sum(layer.stored_after for layer in plan.layers.values())
    assert shown_count(browser, "flops") == sum(layer.flops_after or 0 for layer in plan.layers.values())
    if plan.transformed:
        stats = stats_for(config, page.stats)
        kept = [variance_kept(stats, layer) for layer in plan.transformed]
        shown = browser.text("#total-variance").removeprefix("> ").removesuffix("%")
        assert float(shown) == pytest.approx(100 * sum(kept) / len(kept), abs=0.1)
    settings = Settings.from_mapping(tomllib.loads(browser.text("#toml")))
    assert page.plan(pcn_config(settings)) == plan
    return plan


def variance_kept(stats: pcn.Statistics, layer: pcn.LayerPlan) -> float:
    spectrum = stats.spectrum(layer.name)
    assert layer.rank is not None
    return float(spectrum.leading(layer.rank)[0].sum() / spectrum.total_variance.sum())


def test_the_slider_gives_what_the_planner_gives(browser: Browser, page: Page) -> None:
    browser.visit(page.path)
    first = check_against_planner(browser, page)
    assert first.layers["tied"].rank is None  # its weight is read without a call
    assert first.layers["kept"].rank is None  # excluded
    seen = {first.trainable_after}
    for key, times in [("ArrowLeft", 12), ("ArrowLeft", 25), ("Home", 1), ("ArrowRight", 9), ("End", 1)]:
        browser.press("#slider", key, times)
        seen.add(check_against_planner(browser, page).trainable_after)
    assert len(seen) > 3
    assert browser.problems() == []


@pytest.mark.parametrize("asked", [pcn.PCNConfig(kernel_rank=2), pcn.Budget(params=0.4, step=1, patterns=True)])
def test_the_slider_gives_what_the_planner_gives_after_a_run_with_patterns(
    browser: Browser, tmp_path: Path, asked: pcn.PCNConfig | pcn.Budget
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 24, 3))
    stats = pcn.analyze(model, [torch.rand(16, 3, 12, 12)])
    plan, config = pcn.make_plan(model, stats, asked), asked.config if isinstance(asked, pcn.Budget) else asked
    patterned = [layer for layer in plan.transformed if layer.kernel_rank is not None]
    assert patterned
    page = Page(write_report(tmp_path / "report.html", of(stats, plan, config)), model, stats)
    browser.visit(page.path)
    check_against_planner(browser, page)
    browser.press("#slider", "ArrowLeft", 12)
    check_against_planner(browser, page)
    shown = browser.text("#layers")
    for layer in patterned:
        assert f"This run reads each direction in {layer.kernel_rank} of 9 patterns" in shown


def test_bases_of_outputs_are_told(browser: Browser, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 10))
    stats = pcn.analyze(model, [torch.rand(64, 20)])
    rules = {"0": pcn.LayerRule(output_rank=5), "2": pcn.LayerRule(rank=7, output_rank=4)}
    plan = pcn.make_plan(model, stats, pcn.PCNConfig(rank=None, layers=rules, skip_larger=False))
    browser.visit(write_report(tmp_path / "report.html", of(stats, plan, pcn.PCNConfig(skip_larger=False))))
    outputs_alone, both, whole = (browser.text(f"[data-layer='{name}']") for name in ("0", "2", "4"))
    assert "5 of 16 outputs" in outputs_alone
    assert "This run trains 5 of 16 outputs, which a basis expands. This run: no rank asked for." in outputs_alone
    assert "7 of 16" in both
    assert "This run trains 4 of 12 outputs" in both
    assert "as it is" in whole
    assert browser.problems() == []
    assert browser.problems() == []


@pytest.mark.parametrize(
    "how",
    [
        {"basis": "response", "order": "project_first", "precondition": 0.5},
        {"basis": "random", "precondition": 0.0},
        {"order": "kept_block"},
        {"precondition": 1.0, "train_basis": True},
        {"keep_dropped": True, "kernel_rank": 2},
        {"centred": False},
        {"centred": False, "train_basis": True},
    ],
)
def test_the_configuration_that_is_handed_back_says_how_the_run_s_does(
    browser: Browser, page: Page, tmp_path: Path, how: dict[str, object]
) -> None:
    config = pcn.PCNConfig(rank=pcn.ExplainedVariance(0.9), **how)
    plan = page.plan(config)
    browser.visit(write_report(tmp_path / "report.html", of(page.stats, plan, config)))
    assert eval(browser.text("#python"), {"pcn": pcn}) == config
    assert check_against_planner(browser, page) == plan
    browser.press("#slider", "ArrowRight", 9)
    browser.click("#skip")
    check_against_planner(browser, page)
    assert browser.problems() == []


@pytest.mark.parametrize("centred", [True, False])
def test_rules_for_single_layers_are_as_little_in_the_slider_as_in_what_it_hands_back(
    browser: Browser, page: Page, tmp_path: Path, centred: bool
) -> None:
    rules = {"right": pcn.LayerRule(rank=40, centred=not centred), "wide": pcn.LayerRule(centred=not centred)}
    config = pcn.PCNConfig(rank=pcn.ExplainedVariance(0.9), centred=centred, layers=rules)
    browser.visit(write_report(tmp_path / "report.html", of(page.stats, page.plan(config), config)))
    check_against_planner(browser, page)
    assert ("variances here are about zero" in browser.text("#layers-text")) is not centred


@pytest.mark.parametrize("side", SIDES)
def test_what_is_left_of_a_budget_is_said_below_the_numbers(
    browser: Browser, page: Page, tmp_path: Path, side: str
) -> None:
    plan = pcn.make_plan(page.model, page.stats, pcn.Budget(params=0.9, flops=0.5), graph=page.graph)
    assert plan.unspent is not None
    browser.visit(write_report(tmp_path / "report.html", of(page.stats, plan)), phone=SIDES[side])
    assert browser.text("#unspent") == f"Of the budget, {plan.unspent}."
    above, below, next_part = (
        browser.evaluate(f"document.querySelector('{each}').getBoundingClientRect().top")
        for each in ("#headline", "#unspent", "#explore")
    )
    assert above < below < next_part
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    browser.visit(page.path)
    assert browser.evaluate("document.querySelector('#unspent').offsetParent") is None  # nothing was left, or no budget
    assert browser.problems() == []


def test_thresholds_on_variance_and_layers_that_would_get_larger(browser: Browser, page: Page) -> None:
    browser.visit(page.path)
    browser.click("#mode-variance")
    assert "pcn.Threshold(" in browser.text("#python")
    seen, skipped = {check_against_planner(browser, page).trainable_after}, 0
    for key, times in [("ArrowRight", 25), ("ArrowRight", 25), ("Home", 1), ("ArrowRight", 70), ("End", 1)]:
        browser.press("#slider", key, times)
        plan = check_against_planner(browser, page)
        seen.add(plan.trainable_after)
        browser.click("#skip")
        insisting = check_against_planner(browser, page)
        assert "skip_larger=False" in browser.text("#python")
        skipped += len(insisting.transformed) - len(plan.transformed)
        browser.click("#skip")
    assert skipped > 0
    assert len(seen) > 3
    assert browser.problems() == []


@pytest.mark.parametrize(
    ("mode", "typed", "rule"),
    [
        ("share", "97.25", pcn.ExplainedVariance(0.9725)),
        ("share", "100", pcn.ExplainedVariance(1)),
        ("variance", "0.0125", pcn.Threshold(0.0125)),
        ("variance", "0", pcn.Threshold(0)),
        ("variance", "1e9", pcn.Threshold(1e9)),
    ],
)
def test_a_number_may_be_typed(browser: Browser, page: Page, mode: str, typed: str, rule: pcn.RankRule) -> None:
    browser.visit(page.path)
    browser.click(f"#mode-{mode}")
    browser.type_into("#value", typed)
    assert eval(browser.text("#python"), {"pcn": pcn}).rank == rule
    check_against_planner(browser, page)
    assert browser.problems() == []


def test_a_number_that_is_none_changes_nothing(browser: Browser, page: Page) -> None:
    browser.visit(page.path)
    before = browser.text("#python")
    for wrong in ("many", "-3", "0", "101", ""):
        browser.type_into("#value", wrong)
        assert browser.evaluate("document.querySelector('#value').getAttribute('aria-invalid')") == "true"
        assert browser.text("#python") == before
    browser.type_into("#value", "90")
    assert browser.evaluate("document.querySelector('#value').getAttribute('aria-invalid')") is None


def test_light_and_dark(browser: Browser, page: Page, tmp_path: Path) -> None:
    def ground() -> str:
        return str(browser.evaluate("getComputedStyle(document.body).backgroundColor"))

    browser.visit(page.path)
    light = ground()
    picture = browser.screenshot(tmp_path / "light.png")
    browser.click("#theme")
    dark = ground()
    assert dark != light
    assert browser.screenshot(tmp_path / "dark.png") != picture
    browser.click("#theme")
    assert ground() == light
    browser.visit(page.path, dark=True)
    assert ground() == dark
    browser.click("#theme")
    assert ground() == light
    assert browser.problems() == []


@pytest.mark.parametrize("side", SIDES)
def test_nothing_is_wider_than_the_screen(browser: Browser, page: Page, side: str) -> None:
    browser.visit(page.path, phone=SIDES[side])
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.problems() == []


@pytest.mark.parametrize("side", SIDES)
def test_hostile_names_are_shown_and_run_nothing(browser: Browser, tmp_path: Path, side: str) -> None:
    model, batches = hostile()
    stats = pcn.analyze(model, batches, exclude=HOSTILE[1])
    config = pcn.PCNConfig(exclude=(HOSTILE[1],), rank=pcn.ExplainedVariance(0.5))
    plan = pcn.make_plan(model, stats, config)
    path = write_report(tmp_path / "report.html", of(stats, plan, config, title=f"{HOSTILE[0]} {{{{script}}}}"))
    browser.visit(path, phone=SIDES[side])
    names = browser.evaluate("[...document.querySelectorAll('.layer')].map((row) => row.dataset.layer)")
    assert names == list(HOSTILE)
    assert browser.text("h1") == f"{HOSTILE[0]} {{{{script}}}}"
    assert browser.evaluate("document.querySelectorAll('main img, main script, main [onload]').length") == 0
    check_against_planner(browser, Page(path, model, stats))
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.problems() == []


def test_a_script_that_got_in_would_not_run_and_would_be_seen(browser: Browser, page: Page, tmp_path: Path) -> None:
    attacked = page.path.read_text(encoding="utf-8").replace(
        "<main>", "<main><img src='https://example.invalid/x.png' onerror='alert(1)'><script>alert(2)</script>"
    )
    (tmp_path / "attacked.html").write_text(attacked, encoding="utf-8")
    browser.visit(tmp_path / "attacked.html")
    problems = " ".join(browser.problems())
    assert "Content Security Policy" in problems
    assert "javascriptDialogOpening" not in problems


def test_what_is_not_known_is_said(
    browser: Browser, page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spectra, "MOST", 90)  # nine groups of directions in all: ten of each
    path = write_report(tmp_path / "report.html", of(page.stats, pcn.make_plan(page.model, page.stats)))
    browser.visit(path)
    browser.click("#skip")
    browser.type_into("#value", "99.9")
    plan = pcn.make_plan(page.model, page.stats, eval(browser.text("#python"), {"pcn": pcn}))
    unknown = 0
    for name, shown in shown_ranks(browser).items():
        rank = plan.layers[name].rank
        if shown.startswith("≥ "):
            unknown += 1
            assert rank is not None
            assert rank >= int(shown.split()[1].replace(",", ""))
        elif shown != "as it is":
            assert shown.split()[0] == f"{rank}"
    assert unknown > 0
    assert browser.text("#total-trainable").startswith("≥ ")
    assert browser.problems() == []


def test_the_config_can_be_copied(browser: Browser, page: Page) -> None:
    browser.visit(page.path)
    browser.click("[data-copy=toml]")
    browser.wait_for("document.querySelector('[data-copy=toml]').textContent === 'Copied'")
    assert browser.problems() == []


def test_a_line_of_the_history_can_be_singled_out(browser: Browser, page: Page, tmp_path: Path) -> None:
    records = [
        {"event": event, "epoch": epoch, "step": epoch, "validation_accuracy": 50.0 + epoch, "rule": "95%", **more}
        for epoch in (1, 2, 3)
        for event, more in (("epoch", {}), ("dimensions", {"layers": {"wide": 10 * epoch, "stem": 3}}))
    ]
    path = write_report(tmp_path / "report.html", of(page.stats, metrics=records))
    browser.visit(path)
    assert "hold 95% of the variance" in browser.text("#history-text")
    browser.click(".legend button")
    faded = browser.evaluate("[...document.querySelectorAll('[data-line]')].map((l) => l.classList.contains('faded'))")
    assert faded == [False, True]
    assert json.loads(browser.text("#data"))["planned"] is False
    assert browser.problems() == []


def test_a_switch_in_the_first_epoch_stands_within_the_chart(browser: Browser, page: Page, tmp_path: Path) -> None:
    epochs = [
        {"event": "epoch", "epoch": epoch, "step": epoch, "validation_accuracy": 50.0 + epoch} for epoch in (1, 2, 3)
    ]
    switch = {"event": "switch", "epoch": 0, "step": 0, "validation_accuracy": 40.0}
    path = write_report(tmp_path / "report.html", of(page.stats, metrics=[switch, *epochs]))
    browser.visit(path)
    places = "[...document.querySelectorAll('#history svg line')]"
    at = browser.evaluate(f"{places}.filter((l) => l.classList.contains('switch')).map((l) => +l.getAttribute('x1'))")
    left = browser.evaluate(f"{places}.filter((l) => l.classList.contains('grid')).map((l) => +l.getAttribute('x1'))")
    assert at == left[:1]
    assert browser.problems() == []


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("also_bias", [True, False])
def test_the_slider_counts_frozen_layers_as_the_planner_does(
    browser: Browser, tmp_path: Path, planned: bool, also_bias: bool
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    model[2].weight.requires_grad_(False)
    model[2].bias.requires_grad_(not also_bias)
    stats = pcn.analyze(model, [torch.randn(200, 4) @ torch.randn(4, 32)])
    config = pcn.PCNConfig(rank=pcn.ExplainedVariance(0.5))
    plan = pcn.make_plan(model, stats, config)
    assert plan.layers["2"].rank is not None
    browser.visit(write_report(tmp_path / "report.html", of(stats, plan if planned else None, config)))
    assert shown_count(browser, "trainable") == plan.trainable_after
    assert shown_count(browser, "stored") == sum(layer.stored_after for layer in plan.layers.values())
    assert f"was {sum(layer.size_before for layer in plan.layers.values()):,}" in browser.text("#totals")
