"""Which layers are looked at, and whether what was asked for makes sense."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.parameter import is_lazy

from pcn.collectives import Ranks
from pcn.config import check_count, matches
from pcn.errors import ConfigError, StatisticsError, suggest
from pcn.layers import transformable_layers
from pcn.rank_rules import is_number


def choose_layers(
    model: nn.Module, asked: list[str] | None, exclude: list[str]
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Return the layers to look at, and the reason for every other module with parameters."""
    candidates = list(transformable_layers(model))
    names = [name for name, _, _ in candidates]
    for pattern in [*(asked or ()), *exclude]:
        if not any(matches(name, pattern) for name in names):
            raise ConfigError(f"no layer is called {pattern!r}{suggest(pattern, names)}")
    wanted: dict[str, nn.Module] = {}
    left_alone: dict[str, str] = {}
    for name, module, reason in candidates:
        excluded = next((pattern for pattern in exclude if matches(name, pattern)), None)
        if excluded is not None:
            left_alone[name] = f"excluded by {excluded!r}"
        elif reason is not None:
            if asked is not None and name in asked:
                raise ConfigError(f"{name!r} cannot be transformed: {reason}")
            left_alone[name] = reason
        elif asked is not None and not any(matches(name, pattern) for pattern in asked):
            left_alone[name] = "not among the layers asked for"
        else:
            wanted[name] = module
    if not wanted:
        raise StatisticsError(
            "the model has no layer to look at" + "".join(f"; {n!r}: {r}" for n, r in list(left_alone.items())[:3])
        )
    return wanted, left_alone


def as_list(names: str | Iterable[str], argument: str) -> list[str]:
    """Names or globs as a list, also where one was given by itself."""
    listed = [names] if isinstance(names, str) else list(names) if isinstance(names, Iterable) else [None]
    if not all(isinstance(name, str) for name in listed):
        raise ConfigError(f"{argument}={names!r}: give layer names or globs, such as ['features.*']")
    return listed


def check_weights(model: nn.Module) -> None:
    """Raise where there is nothing to compute with, or nothing yet: a first call would make it."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise StatisticsError(f"{name!r} is lazy, and looking at a model does not change it: run it once first")
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise StatisticsError("the model is on the meta device, where nothing is computed: give it weights first")


def check_numbers(
    pool: int | None = None,
    fraction: float | None = None,
    max_rank: int | None = None,
    passes: int | None = None,
) -> None:
    for name, value in {"pool": pool, "max_rank": max_rank, "passes": passes}.items():
        if value is not None:
            check_count(name, value)
    if fraction is not None and not (is_number(fraction) and 0 < fraction <= 1):
        raise ConfigError(f"fraction={fraction!r}: the fraction must lie in (0, 1]")


def check_same(ranks: Ranks, settings: object) -> None:
    for rank, other in enumerate(ranks.gather(settings)):
        if other != settings:
            raise ConfigError(f"rank {rank} analyzes other layers or with other options than rank {ranks.rank}")
