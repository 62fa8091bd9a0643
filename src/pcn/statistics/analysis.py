"""The pass over the batches: which layers are looked at, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from pcn.config import matches
from pcn.errors import ConfigError, PCNError, StatisticsError, suggest
from pcn.example import Example, Forward, device_of
from pcn.layers import transformable_layers, unwrap
from pcn.statistics.collect import Collector, Sampling
from pcn.statistics.forms import SketchOptions
from pcn.statistics.sketch import Sketch
from pcn.statistics.statistics import LayerShape, Statistics
from pcn.untouched import untouched


def analyze(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    forward: Forward | None = None,
    layers: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] = (),
    pool: int | None = None,
    fraction: float | None = None,
    seed: int = 0,
    max_rank: int | None = None,
    passes: int | None = None,
    eval_mode: bool = True,
) -> Statistics:
    """Measure the inputs of every layer that can be transformed, in one pass over the batches.

    The model runs in eval mode (as it stands with ``eval_mode=False``) and is unchanged afterwards. ``layers`` and
    ``exclude`` are names or globs. ``pool`` averages a convolution's input over squares of that size first;
    ``fraction`` measures a random part of each batch, another one for each layer. An input too wide for its covariance
    is sketched so that ``max_rank`` directions can be told; another pass refines that, and is made unless ``passes``
    is 1 or the batches can be iterated only once.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> statistics = analyze(model, [torch.randn(16, 4), torch.randn(16, 4)])
    >>> statistics.samples("2"), statistics.mean("2").shape
    (32, torch.Size([8]))
    """
    if isinstance(batches, Tensor | Mapping):
        raise ConfigError(f"batches is one {type(batches).__name__}; give an iterable of batches, such as [batch]")
    _check_numbers(pool, fraction, max_rank, passes)
    model = unwrap(model)
    asked = None if layers is None else _as_list(layers)
    wanted, left_alone = _choose(model, asked, _as_list(exclude))
    options = SketchOptions(max_rank, seed)
    collector = Collector(wanted, Sampling(pool, fraction, seed), options)
    with untouched(model, eval_mode):
        example = _one_pass(model, batches, forward, collector)
        _refine(model, batches, forward, collector, passes)
    unseen = [name for name in wanted if name not in collector.key_of]
    if len(unseen) == len(wanted) or set(unseen) & set(asked or ()):
        raise StatisticsError(f"{unseen[0]!r} was never called while the batches went through the model")
    left_alone |= dict.fromkeys(unseen, "never called during the pass")
    return Statistics(
        layers={name: collector.key_of[name] for name in wanted if name in collector.key_of},
        left_alone={name: left_alone[name] for name, _ in model.named_modules() if name in left_alone},
        moments=collector.moments,
        shapes={name: LayerShape.of(module) for name, module in wanted.items()},
        example=example,
        options=options,
    )


def _one_pass(model: nn.Module, batches: Iterable[Any], forward: Forward | None, collector: Collector) -> Example:
    device = device_of(model)
    first = None
    with collector.watching():
        for number, batch in enumerate(batches):
            example = Example.of(batch, forward, device)
            _run(model, example, number)
            collector.end_batch()
            if first is None:
                first = example.with_inputs(tree_map_only(Tensor, torch.Tensor.detach, example.inputs))
                collector.check_finite()  # numbers that are not finite show early
    if first is None:
        raise StatisticsError("there was no batch: a data loader that was iterated before may be used up")
    collector.check_finite()
    return first


def _run(model: nn.Module, example: Example, number: int) -> None:
    try:
        example.call(model)
    except PCNError:
        raise
    except Exception as error:
        raise StatisticsError(
            f"the model failed on batch {number}, called as {example}: {type(error).__name__}: {error}; "
            "give an iterable of batches, and forward=lambda model, batch: ... where the model is called otherwise"
        ) from error


def _refine(
    model: nn.Module, batches: Iterable[Any], forward: Forward | None, collector: Collector, passes: int | None
) -> None:
    sketched = [key for key, moments in collector.moments.items() if isinstance(moments, Sketch)]
    again = bool(sketched) and not isinstance(batches, Iterator)
    if sketched and passes is not None and passes > 1 and not again:
        raise ConfigError(f"passes={passes}, but the batches can be iterated only once; give a list or a data loader")
    for _ in range(1, (passes or 2) if again else 1):
        refined = collector.refining(sketched)
        _one_pass(model, batches, forward, refined)
        collector.moments |= refined.moments


def _choose(
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


def _as_list(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _check_numbers(pool: int | None, fraction: float | None, max_rank: int | None, passes: int | None) -> None:
    for name, value in {"pool": pool, "max_rank": max_rank, "passes": passes}.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name}={value!r}: give a whole number of at least 1")
    if fraction is not None and not 0 < fraction <= 1:
        raise ConfigError(f"fraction={fraction!r}: the fraction must lie in (0, 1]")
