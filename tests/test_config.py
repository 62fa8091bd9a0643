"""Which rule a layer gets, what rules mean, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcn import ExplainedVariance, Fixed, Fraction, L1Threshold, LayerRule, PCNConfig, RankRule, Threshold
from pcn.config import matches
from pcn.errors import ConfigError, PCNError, suggest
from pcn.rank_rules import as_rank_rule

NAMES = ["stem", "layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1", "fc"]
names = st.sampled_from(NAMES)
globs = st.sampled_from(["*", "layer*", "layer1.*", "*.conv1", "layer?.0.conv2", "[sf]*"])
HOW = [LayerRule(order="kept_block"), LayerRule(precondition=0.5), LayerRule(sized_for="sgd")]
rules = st.builds(LayerRule, rank=st.integers(1, 9))


@dataclass
class Eigenvalues:
    """A spectrum that is known."""

    values: list[float]

    @property
    def width(self) -> int:
        return len(self.values)

    def count_above(self, variance: float) -> int:
        return max(1, sum(value > variance for value in self.values))

    def count_explaining(self, share: float) -> int:
        held = [sum(self.values[: count + 1]) for count in range(self.width)]
        return 1 + sum(h < share * held[-1] for h in held)


@given(st.dictionaries(st.one_of(names, globs), rules), st.lists(st.one_of(names, globs), max_size=2), names)
def test_an_exact_name_wins_over_globs_and_the_last_glob_over_the_others(
    layers: dict[str, LayerRule], exclude: list[str], name: str
) -> None:
    config = PCNConfig(rank=10, keep_outputs=0.5, layers=layers, exclude=tuple(exclude))
    matching = [rule for pattern, rule in layers.items() if matches(name, pattern)]
    expected = layers.get(name, matching[-1] if matching else LayerRule(10, 0.5))
    assert config.rule_for(name) == (expected, name in layers)
    assert (config.excludes(name) is not None) == any(matches(name, pattern) for pattern in exclude)


def test_a_rule_replaces_the_default_on_both_sides() -> None:
    config = PCNConfig(rank=10, keep_outputs=0.5, layers={"fc": LayerRule(keep_outputs=3)})
    assert config.rule_for("fc")[0].rank is None
    assert config.rule_for("stem")[0] == LayerRule(10, 0.5)


def test_one_pattern_may_stand_alone() -> None:
    assert PCNConfig(exclude="conv1").exclude == ("conv1",)
    assert PCNConfig(exclude=["a", "b"]).exclude == ("a", "b")


@pytest.mark.parametrize(
    ("rule", "rank"),
    [
        (3, 3),
        (Fixed(3), 3),
        (0.5, 2),  # 2.5 rounds to the even neighbour
        (Fraction(0.01), 1),
        (Fraction(1), 5),
        (Threshold(1.0), 2),
        (Threshold(0), 4),
        (Threshold(9), 1),
        (ExplainedVariance(0.75), 2),
        (ExplainedVariance(0.76), 3),
        (ExplainedVariance(1.0), 4),
    ],
)
def test_what_rank_rules_mean(rule: Any, rank: int) -> None:
    assert as_rank_rule(rule).rank(Eigenvalues([4.0, 2.0, 1.0, 1.0, 0.0])) == rank


@given(st.floats(0.001, 1), st.integers(1, 50))
def test_a_fraction_gives_a_rank_that_exists(fraction: float, width: int) -> None:
    assert 1 <= Fraction(fraction).rank(Eigenvalues([1.0] * width)) <= width


def test_a_rule_of_ones_own_is_a_rank_rule() -> None:
    class HalfOfWhatVaries:
        def rank(self, spectrum: Any) -> int:
            return spectrum.count_above(0) // 2

    rule = HalfOfWhatVaries()
    assert isinstance(rule, RankRule)
    assert as_rank_rule(rule).rank(Eigenvalues([1.0, 1.0, 1.0, 1.0, 0.0])) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Threshold(-0.1), r"Threshold\(-0.1\): the variance must be finite and at least 0"),
        (lambda: Threshold(float("nan")), "must be finite"),
        (lambda: Threshold(float("inf")), "must be finite"),
        (lambda: Threshold("0.1"), "must be finite"),
        (lambda: Threshold(True), "must be finite"),
        (lambda: Fixed(0), "rank=0: give a whole number of at least 1"),
        (lambda: Fixed(2.0), "whole number"),
        (lambda: PCNConfig(rank=ExplainedVariance), r"is a class: give a rule .* such as ExplainedVariance\(\.\.\.\)"),
        (
            lambda: PCNConfig(output_rank=0, rank=4),
            "output_rank=0: give a whole number of at least 1, or a fraction of the",
        ),
        (lambda: Fixed(True), "whole number"),
        (lambda: Fraction(0.0), r"\(0, 1\]"),
        (lambda: Fraction(1.1), r"\(0, 1\]"),
        (lambda: Fraction("half"), r"\(0, 1\]"),
        (lambda: ExplainedVariance(0), r"\(0, 1\]"),
        (lambda: ExplainedVariance(float("nan")), r"\(0, 1\]"),
        (lambda: L1Threshold(-1), "at least 0"),
        (lambda: LayerRule(rank=0), "at least 1"),
        (lambda: LayerRule(rank=50.0), r"\(0, 1\]"),
        (lambda: LayerRule(rank="all"), "give a whole number, a fraction of the width or a rank rule"),
        (lambda: LayerRule(rank=LayerRule(rank=3)), "give a whole number"),
        (lambda: LayerRule(keep_outputs=0), "a number of channels, a fraction"),
        (lambda: LayerRule(keep_outputs=1.5), "a number of channels, a fraction"),
        (lambda: LayerRule(keep_outputs=True), "a number of channels, a fraction"),
        (lambda: LayerRule(order="first"), "choose one of truncate_first, project_first, kept_block"),
        (lambda: PCNConfig(rank=False), "rank=False"),
        (lambda: PCNConfig(order="last"), "order='last'"),
        (lambda: PCNConfig(multiple_of=0), "multiple_of=0"),
        (lambda: PCNConfig(multiple_of=2.0), "multiple_of=2.0"),
        (lambda: PCNConfig(layers={"fc": 50}), r"layers\['fc'\] is 50: give a LayerRule"),
        (lambda: PCNConfig(layers=["fc"]), "give a mapping from layer names"),
        (lambda: PCNConfig(layers={3: LayerRule()}), "3 is not a layer name"),
        (lambda: PCNConfig(exclude=[0]), "0 is not a layer name"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_every_error_is_ours_and_a_value_error_where_a_value_is_wrong() -> None:
    assert issubclass(ConfigError, PCNError)
    assert issubclass(ConfigError, ValueError)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PCNConfig(layers={"fx": LayerRule()}), "no layer is called 'fx'; did you mean 'fc'?"),
        (PCNConfig(exclude=["layer1.0.conv3"]), "'layer1.0.conv3'; did you mean 'layer1.0.conv"),
        (PCNConfig(exclude=["blocks.*"]), r"no layer is called 'blocks\.\*'"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one_suggested(config: PCNConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        config.check_names(NAMES)


def test_known_names_and_globs_pass() -> None:
    PCNConfig(layers={"layer1.*": LayerRule(), "fc": LayerRule()}, exclude=["*.conv2"]).check_names(NAMES)


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    assert suggest("zzz", NAMES) == ""


@given(names, st.sampled_from(HOW), st.booleans())
def test_a_rule_that_only_says_how_leaves_the_sizes_to_others(name: str, how: LayerRule, by_glob: bool) -> None:
    config = PCNConfig(rank=3, keep_outputs=0.5, layers={"*" if by_glob else name: how})
    rule, exact = config.rule_for(name)
    assert rule == replace(how, rank=3, keep_outputs=0.5)
    assert not exact
    assert not config.fixes(name)
    assert PCNConfig(layers={name: LayerRule()}).rule_for(name) == (LayerRule(), True)  # which leaves it alone


def test_an_output_rank_is_a_size_that_needs_no_rank_beside_it() -> None:
    rule = LayerRule(output_rank=8)
    assert rule.transforms
    assert not rule.only_says_how
    assert PCNConfig(layers={"fc": rule}).fixes("fc")


def test_flags_are_not_alike_for_their_dashes() -> None:
    assert suggest("--nope", ["--compile", "--json"]) == ""
    assert suggest("--modle", ["--model", "--json"]) == "; did you mean '--model'?"
