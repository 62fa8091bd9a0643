"""Everything that a training run can be asked for: one flat table, the same names in TOML, in Python and as flags."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pcn.config import BASES, ORDERS, STEPPERS
from pcn.errors import ConfigError, suggest
from pcn.planner.budget import Budget
from pcn.planner.units import UNITS
from pcn.running.untouched import MODES
from pcn.training.setting_types import checked, option, switch_option

OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "drops", "cosine")
AUGMENT = ("none", "crop-flip", "resized-crop", "resized-crop-colour")
SCALES = ("unit", "standardise", "centre")
LIMITS = tuple(UNITS)  # of a budget
BUDGET = (*LIMITS, "worth", "two_sided", "drop_channels", "patterns", "rank_step", "rank_floor")  # all that makes one
WORTHS = ("response", "taylor", "divergence", "evenly", "hedged")
STEP = Budget.step
FLAGS = ("out", "device", "threads", "compile", "fuse")  # of pcn train: where and how, not what


@dataclass(frozen=True)
class Settings:
    """A run, resolved: with the same settings, data and seed it ends with the same weights."""

    model: str = option(
        "pcn.demo.network:DigitsNetwork", "a network of the paper, package.module:factory, hf:TYPE, hf:DIR or timm:NAME"
    )
    model_options: dict[str, Any] = option({}, "keyword arguments of the factory, hf:'s configuration or timm's model")
    data: str = option("digits", "digits, mnist, cifar10, folder, or package.module:factory")
    data_dir: str | None = option(None, "where the data set lies")
    data_options: dict[str, Any] = option({}, "keyword arguments of the data's factory")
    scale: str = option("standardise", "what is done to pixels", choices=SCALES)
    augment: str = option(
        "none",
        "crop-flip: random crops and flips; resized-crop: of random size; -colour: in random colours",
        choices=AUGMENT,
    )
    epochs: int = option(10, "epochs in all", least=1)
    batch: int = option(128, "samples in a step, over all processes", least=1)
    seed: int = option(0, "decides the weights, the split and the order of the data")
    optimizer: str = option("sgd", "which optimizer", choices=OPTIMIZERS)
    learning_rate: float = option(0.05, "its learning rate")
    momentum: float = option(0.9, "SGD's momentum", least=0, most=1)
    nesterov: bool = option(False, "Nesterov's form of it")
    betas: tuple[float, float] = option((0.9, 0.999), "Adam's decay rates", least=0)
    epsilon: float = option(1e-8, "Adam's epsilon", least=0)
    weight_decay: float = option(0.0, "weight decay", least=0)
    decoupled_decay: bool = option(False, "take SGD's decay off the weights themselves, as AdamW does")
    decay_norms: bool = option(False, "decay the parameters of normalisation layers too")
    label_smoothing: float = option(0.0, "label smoothing", least=0, most=1)
    schedule: str = option("constant", "how the learning rate goes", choices=SCHEDULES)
    drops: tuple[float, ...] = option((), "epochs after which the rate drops")
    drop_factor: float = option(0.1, "what a drop multiplies the rate by")
    warmup_epochs: float = option(0.0, "epochs in which the rate rises from 0", least=0)
    warmup_factor: float | None = option(None, "stay at this share of the rate in them instead")
    pcn: str | None = switch_option(None, "a PCN of the paper by name (conv4-pcn, wide_resnet20-pcn1, ...)")
    rank: str | None = switch_option(
        None,
        'a number, a fraction of the width, "variance > 0.1", "95%" of the variance, or none: inputs as they are '
        "(default: 95%, or as a budget chooses)",
    )
    params: str | float | None = switch_option(
        None, "a budget of trainable parameters: a number (1 is one), or a fraction of the model's (1.0 or 100% is all)"
    )
    flops: str | float | None = switch_option(
        None, "a budget of operations per sample: a number, or a fraction of the model's, likewise"
    )
    step_ms: str | float | None = switch_option(
        None,
        "a budget of a training step's time, forward and backward, measured: milliseconds (5, 0.5ms), or a fraction of "
        "what it takes now (0.5, 50%)",
    )
    memory_mib: str | float | None = switch_option(
        None,
        "a budget of a training step's memory, activations included: MiB (5, 0.5MiB), or a fraction of what it takes "
        "now (0.5, 50%)",
    )
    stored: str | float | None = switch_option(
        None, "a budget of all numbers that are stored, bases too: a number, or a fraction of the model's, likewise"
    )
    worth: str | None = switch_option(
        None,
        "by what a budget compares directions of different layers (default: hedged where it limits params, otherwise "
        "response)",
        choices=WORTHS,
    )
    two_sided: bool = switch_option(
        False, "have a budget choose on which side each layer gets a basis, inputs or outputs, or both"
    )
    drop_channels: bool = switch_option(False, "have a budget choose which output channels go as well")
    patterns: bool | None = switch_option(
        None,
        "have a budget choose in how many patterns of taps each convolution reads its directions as well (default: "
        "where it limits params, and neither time nor memory)",
    )
    rank_step: int = switch_option(
        STEP, "ranks within a budget, and channels that are kept, go in steps of this", least=1
    )
    rank_floor: float = switch_option(
        0.0, "share of its directions that every layer keeps at least within a budget", least=0.0, most=1.0
    )
    output_rank: int | float | None = switch_option(
        None,
        "outputs of every layer that are trained: a number (1 is one), or a fraction (1.0 is all); inputs are read by "
        "their rank (default: 95%) all the same, unless rank is none",
    )
    kernel_rank: int | None = switch_option(
        None,
        "patterns of taps for a direction of a convolution, on average (default: all taps, or as a budget chooses)",
        least=1,
    )
    keep_outputs: int | float | None = switch_option(
        None, "outputs that every layer keeps: a number (1 is one), or a fraction (1.0 is all)"
    )
    layers: dict[str, Any] = switch_option({}, "a rank, or all that a LayerRule says, for layers by name or glob")
    exclude: tuple[str, ...] = switch_option((), "layers to leave alone, by name or glob")
    order: str = switch_option("truncate_first", "how a layer reads inputs of which some are dropped", choices=ORDERS)
    basis: str = switch_option(
        "pca",
        "which directions: pca, response (best for the layer's output), balanced (for the loss), random",
        choices=BASES,
    )
    precondition: float | None = switch_option(
        None,
        "0 to 1: how far directions are brought to the same variance (default: 0; within a budget 1 where a batch norm "
        "follows)",
    )
    sized_for: str | None = switch_option(
        None,
        "by whose steps coordinates are sized: sgd, which PCA's suit, or adam (default: sgd; within a budget adam "
        "where that trains)",
        choices=STEPPERS,
    )
    centred: bool = switch_option(
        True, "read inputs without their mean, which a bias makes up for; if not, layers gain no bias"
    )
    skip_larger: bool = switch_option(True, "leave layers alone that would not get smaller, their bases included")
    train_basis: bool = switch_option(False, "train the bases too")
    keep_dropped: bool = switch_option(False, "keep the dropped part of the weights, frozen")
    switch_at: str = option(
        "never", 'an epoch (0 is before any training), "step 500", "accuracy slows", "subspaces settle" or "never"'
    )
    # Not of the switch alone: recipes give it to parents and to their PCNs alike.
    carry_state: bool = option(True, "keep the optimizer's state at the switch")
    switch_rate: float = switch_option(1.0, "multiplies the learning rate from the switch on")
    fade_epochs: float = switch_option(0.0, "have what the cut takes away fade over so many epochs first")
    recalibrate: bool = switch_option(False, "measure batch norm's statistics anew after the switch")
    measure_every: int = option(1, "epochs between looks at the effective dimensions, up to the switch; 0: never")
    calibration_samples: int = option(5000, "training samples to find the subspaces on", least=1)
    analysis_mode: str | None = option(
        None,
        "the model's mode meanwhile: eval, batch (as eval, but batch norm as in training) or train "
        "(default: eval, at a switch within a budget batch)",
        choices=MODES,
    )
    analysis_pool: int | None = option(
        None, "average convolutions' inputs over squares of so many pixels first", least=1
    )
    analysis_fraction: float | None = option(None, "use a random part of the samples, another one for each layer")
    keep_best: bool = option(False, "end with the weights of the epoch with the best validation accuracy")
    patience: int | None = option(None, "stop after so many epochs without a better one (and keep the best)", least=1)
    min_delta: float = option(0.0, "points of validation accuracy by which an epoch must be better")
    checkpoint_every: float = option(1, "epochs between checkpoints; a fraction of one for several in an epoch")

    def __post_init__(self) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, checked(each, _hints()[each.name], getattr(self, each.name)))
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed={self.seed!r}: give a whole number from 0 to below 2**63")
        if not 0 <= self.fade_epochs < self.epochs:
            raise ConfigError(
                f"fade_epochs={self.fade_epochs!r}: give a number from 0 to below the {self.epochs} epochs"
            )
        if self.measure_every < 0:
            raise ConfigError(f"measure_every={self.measure_every!r}: give a number of epochs, or 0 for never")
        for name in ("learning_rate", "switch_rate", "checkpoint_every"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)!r}: give a number above 0")
        if len(self.betas) != 2 or max(self.betas) >= 1:
            raise ConfigError(f"betas={self.betas!r}: give two numbers below 1, such as 0.9 0.999")
        if self.analysis_fraction is not None and not 0 < self.analysis_fraction <= 1:
            raise ConfigError(f"analysis_fraction={self.analysis_fraction!r}: give a number above 0 and at most 1")
        self._check_together()

    def _check_together(self) -> None:
        """Raise for settings that do not go with each other."""
        if (self.schedule == "drops") != bool(self.drops):
            raise ConfigError(f"schedule={self.schedule!r} with drops={self.drops!r}: give both, or neither")
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov with momentum=0.0: it is a form of momentum, give some")
        if self.decoupled_decay and self.optimizer != "sgd":
            raise ConfigError(f"decoupled_decay with optimizer={self.optimizer!r}: it is for sgd; adamw has it")
        if self.rank is not None and self.has_budget:
            raise ConfigError("rank and a budget are both given: a budget chooses the ranks itself")
        if self.pcn is not None and self.has_budget:
            raise ConfigError(
                "pcn and a budget are both given: pcn names ranks of the paper, a budget chooses its own; leave one out"
            )
        named = [name for name in ("two_sided", "drop_channels", "patterns") if getattr(self, name)]
        named += [f"rank_step={self.rank_step}"] if self.rank_step != STEP else []
        named += [f"rank_floor={self.rank_floor}"] if self.rank_floor else []
        if not self.has_budget and (named or self.worth not in (None, WORTHS[0])):
            given = " and ".join(named) or f"worth={self.worth!r}"
            raise ConfigError(f"{given} without a budget: give one of {', '.join(LIMITS)}, or leave it out")
        if self.drop_channels and self.fade_epochs:
            raise ConfigError("drop_channels with fade_epochs: channels that are dropped cannot fade, leave one out")

    @property
    def has_budget(self) -> bool:
        """Whether ranks are chosen to fit one."""
        return any(getattr(self, name) is not None for name in LIMITS)

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Settings:
        """Make settings from names and values, such as a TOML file holds."""
        known = {each.name for each in fields(cls)}
        for name in given:
            if name not in known:
                flag = f"; it is a flag of pcn train, --{name}" if name in FLAGS else suggest(name, known)
                raise ConfigError(f"there is no setting {name!r}{flag}")
        return cls(**given)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    def differences(self, other: Settings) -> list[str]:
        """The names of settings in which two runs differ."""
        mine, theirs = json.loads(self.to_json()), json.loads(other.to_json())
        return [name for name in mine if mine[name] != theirs[name]]


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Settings)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a settings file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
