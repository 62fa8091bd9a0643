"""What a person may ask of the whole model: a budget."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pcn.config import USUAL_RANK, PCNConfig, Stepper, check_count, check_flags
from pcn.errors import ConfigError
from pcn.planner.hedged import Hedged
from pcn.planner.limits import read_limit
from pcn.planner.optimizer_state import OF_ADAM, STATE, kind_of, steps_like_adam
from pcn.planner.response import Response
from pcn.planner.units import MEASURED, UNITS
from pcn.planner.values import Worth
from pcn.running.optimizers import Optimizers, as_optimizers

Limit = int | float | str | None


@dataclass(frozen=True)
class Budget:
    """What the whole model may cost: an amount, or a fraction of what it costs now; at least one limit is given.

    A float up to 1.0 is a fraction and any other number an amount, so 1.0 is all that it takes now, and 1 is one. Text
    says which: "30%" is a fraction; "0.3 ms" and "0.5 MiB" are amounts, which may be below 1. ``params`` counts trained
    parameters, ``flops`` the operations per sample in matrix products and convolutions; ``step_ms`` is the time of a
    training step, forward and backward, measured on the model's device, and ``memory_mib`` what it holds: weights,
    gradients, the optimizer's state, and activations for the backward pass; ``stored`` counts all floating-point
    numbers that are kept when the model is saved, bases and running statistics too. Which layers may change, and all
    options, come from ``config``; layers for which it has a rule keep to that. ``worth`` and ``patterns`` are chosen by
    the limits where they are None: see :meth:`settled`.

    >>> Budget(params=0.25, config=PCNConfig(exclude=["head"])).limit("params", 4_000_000)
    1000000
    """

    params: Limit = None
    flops: Limit = None
    step_ms: Limit = None
    memory_mib: Limit = None
    stored: Limit = None
    step: int = 8  # ranks are handed out in steps of this, and channels kept, which suits matrix products
    floor: float = 0.0  # share of its directions that every layer keeps at least
    worth: Worth | None = None  # what the directions of a layer are worth; None: what suits the limits
    two_sided: bool = False  # choose for each layer on which side it gets a basis, inputs or outputs, or on both
    drop_channels: bool = False  # choose which output channels go as well, coupled ones together
    patterns: bool | None = None  # choose in how many patterns of taps convolutions read; None: where that helps
    batch: int | None = None  # samples of a step, for time and memory; None: as many as the batch has that is looked at
    optimizer: str | None = None  # whose state counts: sgd, momentum, adam, amsgrad; None: the one given, or momentum
    config: PCNConfig = field(default_factory=PCNConfig)

    def __post_init__(self) -> None:
        for name in UNITS:
            if getattr(self, name) is not None:
                read_limit(name, getattr(self, name))
        if not self.units:
            raise ConfigError(f"a budget needs {', '.join(UNITS)}, or several, as in Budget(params=0.25)")
        check_count("step", self.step)
        if self.batch is not None:
            check_count("batch", self.batch)
        if isinstance(self.floor, bool) or not isinstance(self.floor, int | float) or not 0 <= self.floor <= 1:
            raise ConfigError(f"floor={self.floor!r}: give a share of a layer's directions, from 0 to 1")
        if self.optimizer is not None and self.optimizer not in STATE:
            raise ConfigError(f"optimizer={self.optimizer!r}: give one of {', '.join(STATE)}")
        if not isinstance(self.config, PCNConfig):
            raise ConfigError(f"config={self.config!r}: give a PCNConfig")
        check_flags(self, "two_sided", "drop_channels", *(["patterns"] if self.patterns is not None else []))
        if self.config.rank not in (None, USUAL_RANK):
            raise ConfigError(
                f"rank={self.config.rank!r} beside a budget, which chooses the ranks itself: leave one of them out, or "
                "give the rank in a rule for the layers that are meant"
            )
        for name in ("keep_outputs", "output_rank"):
            if getattr(self.config, name) is not None:
                raise ConfigError(
                    f"{name}={getattr(self.config, name)!r} beside a budget, which chooses for every layer: "
                    "give it in a rule for the layers that are meant (two_sided=True chooses output ranks)"
                )
        if self.drop_channels:
            self._check_drops()
        if self.patterns:
            self._check_patterns()
        if self.worth is not None and (isinstance(self.worth, type) or not isinstance(self.worth, Worth)):
            raise ConfigError(
                f"worth={self.worth!r}: give Response(), Evenly(), Hedged(), Taylor(...), Divergence(...) or one of "
                "your own"
            )

    def _check_drops(self) -> None:
        if self.units and all(unit in MEASURED for unit in self.units):
            raise ConfigError(
                "drop_channels=True without params, flops or stored: time and memory are measured with all channels in "
                "place"
            )
        ruled = next((name for name, rule in self.config.layers.items() if rule.keep_outputs is not None), None)
        if ruled is not None:
            raise ConfigError(f"drop_channels=True, but layers[{ruled!r}] says what to keep: choose one of them")

    def _check_patterns(self) -> None:
        if self.config.kernel_rank is not None:
            raise ConfigError(
                f"kernel_rank={self.config.kernel_rank} beside patterns=True, which chooses for every layer: give one "
                "of them, or the number in a rule for the layers that are meant"
            )
        if self.measures:
            raise ConfigError(
                "patterns=True with step_ms or memory_mib: time and memory are measured for one number of patterns, so "
                "give that, as in PCNConfig(kernel_rank=4)"
            )

    @property
    def units(self) -> tuple[str, ...]:
        """What is limited."""
        return tuple(name for name in UNITS if getattr(self, name) is not None)

    @property
    def rank_step(self) -> int:
        """The steps of rank, in multiples that the configuration rounds up to."""
        return -(-self.step // self.config.multiple_of) * self.config.multiple_of

    @property
    def finest(self) -> Budget:
        """The same budget where ranks go in steps of 1."""
        return replace(self, step=1, config=replace(self.config, multiple_of=1))

    @property
    def measures(self) -> bool:
        """Whether the model has to run on its device to know what it costs."""
        return any(name in MEASURED for name in self.units)

    @property
    def needs_batches(self) -> bool:
        """Whether the model has to run on the batches to know what its directions are worth."""
        return self.worth is not None and self.worth.needs_batches

    @property
    def sized_for(self) -> Stepper:
        """By whose steps coordinates are sized."""
        return self.config.sized_for or ("adam" if self.optimizer in OF_ADAM else "sgd")

    def settled(self) -> Budget:
        """The budget with nothing left open.

        Where trained parameters are limited, shares that are even beside the response, and few patterns of taps for
        each of many directions, have trained best. Patterns save what is trained and stored, but neither operations
        nor, as measured, time or memory.

        >>> Budget(params=0.25).settled().patterns, Budget(flops=0.25).settled().worth
        (True, Response())
        """
        worth = (Hedged() if self.params is not None else Response()) if self.worth is None else self.worth
        saves = self.params is not None or self.stored is not None
        suits = saves and self.config.kernel_rank is None and not self.measures
        return replace(self, worth=worth, patterns=suits if self.patterns is None else self.patterns)

    def trained_by(self, optimizer: Optimizers) -> Budget:
        """The budget that counts this optimizer's state and suits its steps, unless it says itself which."""
        kind = self.optimizer or kind_of(optimizer)
        unknown = [type(each).__name__ for each in as_optimizers(optimizer) if kind_of(each) is None]
        if self.memory_mib is not None and kind is None and unknown:
            raise ConfigError(
                f"how much {' and '.join(unknown)} keeps is not known here before its first step: give "
                f"Budget(optimizer=...), one of {', '.join(STATE)}, whichever keeps at least as much"
            )
        sized = self.config.sized_for or (None if steps_like_adam(optimizer) else "sgd")
        return replace(self, optimizer=kind, config=replace(self.config, sized_for=sized))

    def limit(self, name: str, now: int) -> int | None:
        """What may be spent of something of which the model takes so much now (ns, bytes); None for any amount."""
        if getattr(self, name) is None:
            return None
        value, of_now = read_limit(name, getattr(self, name))
        return int(value * (now if of_now else UNITS[name].parts))


def config_of(wish: PCNConfig | Budget) -> PCNConfig:
    """The configuration, also where a budget chooses the ranks."""
    return wish.config if isinstance(wish, Budget) else wish


def as_budget(config: PCNConfig | Budget | None, **limits: Limit) -> Budget | None:
    """The budget that is asked for, given whole or by its numbers, or None where only a configuration is."""
    given = {name: value for name, value in limits.items() if value is not None}
    if isinstance(config, Budget):
        if given:
            raise ConfigError(f"a Budget is given whole: put {' and '.join(given)} into it")
        return config
    if config is not None and not isinstance(config, PCNConfig):
        raise ConfigError(f"config={config!r}: give a PCNConfig, or a Budget such as Budget(params=0.25)")
    return Budget(**given, config=config or PCNConfig()) if given else None  # type: ignore[arg-type]
