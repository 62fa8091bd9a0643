"""What a person asks for: how many outputs to keep, rules for layers, and the whole configuration."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pcn.errors import ConfigError, suggest
from pcn.rank_rules import ExplainedVariance, Fixed, Fraction, Rank, as_rank_rule, is_number

Order = Literal["truncate_first", "project_first", "kept_block"]
ORDERS: tuple[Order, ...] = ("truncate_first", "project_first", "kept_block")
BasisKind = Literal["pca", "response", "balanced", "random"]
BASES: tuple[BasisKind, ...] = ("pca", "response", "balanced", "random")
Stepper = Literal["sgd", "adam"]
STEPPERS: tuple[Stepper, ...] = ("sgd", "adam")
USUAL_RANK = ExplainedVariance(0.95)


@dataclass(frozen=True)
class L1Threshold:
    """Keep the output channels whose score, the mean L1 row norm in the readers' bases, is greater than ``norm``."""

    norm: float

    def __post_init__(self) -> None:
        if not (is_number(self.norm) and self.norm >= 0):
            raise ConfigError(f"L1Threshold({self.norm!r}): the norm must be finite and at least 0")


KeepOutputs = int | float | L1Threshold


def _check_output_rank(given: object) -> None:
    """Raise unless outputs are counted, or a fraction of them is given: of their number statistics say nothing."""
    if given is None:
        return
    try:
        allowed = isinstance(as_rank_rule(given), Fixed | Fraction)  # type: ignore[arg-type]
    except ConfigError:
        allowed = False
    if not allowed:
        raise ConfigError(f"output_rank={given!r}: give a whole number of at least 1, or a fraction of the outputs")


def _check_keep_outputs(keep: KeepOutputs) -> None:
    """Raise unless ``keep`` is a positive count, a fraction in (0, 1] or an :class:`L1Threshold`."""
    is_count = isinstance(keep, int) and not isinstance(keep, bool) and keep >= 1
    is_fraction = isinstance(keep, float) and 0 < keep <= 1
    if not (is_count or is_fraction or isinstance(keep, L1Threshold)):
        raise ConfigError(
            f"keep_outputs={keep!r}: give a number of channels, a fraction of them in (0, 1] or an L1Threshold"
        )


@dataclass(frozen=True)
class LayerRule:
    """What to do with the layers that a name or a glob matches; ``None`` leaves that side of the layer alone.

    A rule that only says how (``order``, ``precondition``, ``kernel_rank``, ``sized_for``, ``centred``) leaves the
    sizes to the configuration or the budget.

    >>> LayerRule(rank=50, keep_outputs=90) == LayerRule(50, 90)
    True
    """

    rank: Rank | None = None
    keep_outputs: KeepOutputs | None = None
    order: Order | None = None
    output_rank: int | float | None = None  # outputs that are trained, behind a frozen basis; alone: reads all inputs
    precondition: float | None = None  # 0 to 1, in place of the configuration's
    kernel_rank: int | None = None  # in place of the configuration's
    sized_for: Stepper | None = None  # in place of the configuration's
    centred: bool | None = None  # in place of the configuration's

    def __post_init__(self) -> None:
        if self.rank is not None:
            as_rank_rule(self.rank)
        if self.keep_outputs is not None:
            _check_keep_outputs(self.keep_outputs)
        if self.order is not None:
            _check_choice("order", self.order, ORDERS)
        _check_output_rank(self.output_rank)
        if not (self.precondition is None or (is_number(self.precondition) and 0 <= self.precondition <= 1)):
            raise ConfigError(f"precondition={self.precondition!r}: give a number from 0 (not at all) to 1 (fully)")
        if self.kernel_rank is not None:
            check_count("kernel_rank", self.kernel_rank)
        if self.sized_for is not None:
            _check_choice("sized_for", self.sized_for, STEPPERS)
        if self.centred is not None:
            check_flags(self, "centred")
        sized = next((name for name in ("keep_outputs", "output_rank") if getattr(self, name) is not None), None)
        if self.kernel_rank is not None and sized is not None and self.rank is None:
            raise ConfigError(
                f"kernel_rank={self.kernel_rank} beside {sized}, without a rank: give one, 1.0 for all inputs"
            )

    @property
    def only_says_how(self) -> bool:
        """Whether sizes are left to others."""
        how = (self.order, self.precondition, self.kernel_rank, self.sized_for, self.centred)
        return not self.has_sizes and any(each is not None for each in how)

    @property
    def has_sizes(self) -> bool:
        return any(each is not None for each in (self.rank, self.keep_outputs, self.output_rank))

    @property
    def transforms(self) -> bool:
        """Whether a layer is to get a basis, on one side or the other."""
        return self.rank is not None or self.output_rank is not None

    @property
    def needs_statistics(self) -> bool:
        """Whether only statistics tell its rank."""
        return self.rank is not None and not isinstance(as_rank_rule(self.rank), Fixed | Fraction)


@dataclass(frozen=True)
class PCNConfig:
    """The whole request.

    ``rank`` and ``keep_outputs`` hold for every layer that no entry of ``layers`` matches. The keys of ``layers`` and
    the items of ``exclude`` are layer names or globs; an exact name wins over a glob, and among globs the last one
    written wins. ``exclude`` wins over everything.
    """

    rank: Rank | None = USUAL_RANK
    keep_outputs: KeepOutputs | None = None
    layers: Mapping[str, LayerRule] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    order: Order = "truncate_first"
    output_rank: int | float | None = None  # the same from the other side: outputs that are trained and then expanded
    # patterns of taps for a convolution's direction, on average; None: every tap, or as a budget chooses
    kernel_rank: int | None = None
    basis: BasisKind = "pca"  # "response": best for the layer's output; "balanced": for the loss; "random": a control
    # 0 to 1: how far directions get the same variance; None: 0, but 1 within a budget where a batch norm follows
    precondition: float | None = None
    # by whose steps coordinates are sized; None: sgd, which PCA's suit, but adam within a budget of what Adam trains
    sized_for: Stepper | None = None
    centred: bool = True  # read x - mean, which a bias makes up for; False: x as it is, and layers gain no bias
    multiple_of: int = 1  # ranks are rounded up to a multiple of this, never above the width
    skip_larger: bool = True  # leave a layer alone that would not get smaller, its basis included
    train_basis: bool = False  # the authors' option: the basis is trained too
    keep_dropped: bool = False  # the authors' option: the dropped part of the weight stays, frozen

    def __post_init__(self) -> None:
        if not isinstance(self.layers, Mapping):
            raise ConfigError(f"layers={self.layers!r}: give a mapping from layer names or globs to LayerRules")
        object.__setattr__(self, "layers", dict(self.layers))
        if not isinstance(self.exclude, Iterable):
            raise ConfigError(f"exclude={self.exclude!r}: give layer names or globs, such as ['features.*']")
        object.__setattr__(self, "exclude", (self.exclude,) if isinstance(self.exclude, str) else tuple(self.exclude))
        LayerRule(self.rank, self.keep_outputs, self.order, self.output_rank, self.precondition)
        LayerRule(kernel_rank=self.kernel_rank, sized_for=self.sized_for)
        _check_choice("basis", self.basis, BASES)
        check_flags(self, "centred", "skip_larger", "train_basis", "keep_dropped")
        check_count("multiple_of", self.multiple_of)
        for pattern, rule in self.layers.items():
            if not isinstance(rule, LayerRule):
                raise ConfigError(f"layers[{pattern!r}] is {rule!r}: give a LayerRule")
        for pattern in [*self.layers, *self.exclude]:
            if not isinstance(pattern, str):
                raise ConfigError(f"{pattern!r} is not a layer name: give names or globs, such as 'features.*'")

    @property
    def needs_gradients(self) -> bool:
        """Whether the statistics must come from ``analyze(..., gradients=True)``."""
        return self.basis == "balanced"

    def excludes(self, name: str) -> str | None:
        """Return the pattern of ``exclude`` that matches this layer, or None."""
        return next((p for p in self.exclude if matches(name, p)), None)

    def rule_for(self, name: str) -> tuple[LayerRule, bool]:
        """Return the rule of a layer, and whether sizes are asked of it by name (so that it must not be skipped)."""
        rule = self._own_rule(name)
        if rule is None or rule.only_says_how:
            how = rule or LayerRule()
            return replace(how, rank=self.rank, keep_outputs=self.keep_outputs, output_rank=self.output_rank), False
        return rule, name in self.layers

    @property
    def transforms_any(self) -> bool:
        """Whether layers without a rule of their own are to get a basis, on one side or the other."""
        return self.rank is not None or self.output_rank is not None

    def centres(self, name: str) -> bool:
        """Whether a layer is to read its input without its mean."""
        own = self.rule_for(name)[0].centred
        return self.centred if own is None else own

    def patterns(self, name: str, taps: int) -> int | None:
        """In how many patterns of its taps a direction of a layer is read, on average; None: by every tap."""
        own = self.rule_for(name)[0].kernel_rank
        asked = self.kernel_rank if own is None else own
        return asked if asked is not None and asked < taps else None

    def fixes(self, name: str) -> bool:
        """Say whether ``layers`` has sizes for this layer, by name or by glob."""
        rule = self._own_rule(name)
        return rule is not None and not rule.only_says_how

    def _own_rule(self, name: str) -> LayerRule | None:
        globs = [rule for pattern, rule in self.layers.items() if matches(name, pattern)]
        return self.layers.get(name, globs[-1] if globs else None)

    def check_names(self, known: Iterable[str]) -> None:
        """Raise when a key of ``layers`` or an item of ``exclude`` matches none of the known layer names."""
        known = list(known)
        for pattern in [*self.layers, *self.exclude]:
            if not any(matches(name, pattern) for name in known):
                raise ConfigError(f"no layer is called {pattern!r}{suggest(pattern, known)}")


def matches(name: str, pattern: str) -> bool:
    """Say whether a layer name equals a pattern or matches it as a glob.

    >>> matches("features.0", "features.*"), matches("fc1", "features.*")
    (True, False)
    """
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def check_flags(given: object, *names: str) -> None:
    """Raise where a field that is on or off holds something else: of "no", say, nobody could tell what is meant."""
    for name in names:
        if not isinstance(value := getattr(given, name), bool):
            raise ConfigError(f"{name}={value!r}: give True or False")


def check_count(name: str, given: object) -> None:
    """Raise for what is no number of things, of which there is at least one."""
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ConfigError(f"{name}={given!r}: give a whole number of at least 1")


def _check_choice(name: str, given: str, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise ConfigError(f"{name}={given!r}: choose one of {', '.join(choices)}")
