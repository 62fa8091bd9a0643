"""Looking at a model: what its layers read, from one pass over some batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from pcn.collectives import Ranks
from pcn.errors import ConfigError, StatisticsError
from pcn.layers import unwrap
from pcn.running.example import Batches, Forward, opened
from pcn.running.gradients import Loss, predicted_losses
from pcn.running.refusals import check_whole
from pcn.running.untouched import Mode, checked_mode, untouched
from pcn.statistics.choice import as_list, check_numbers, check_same, check_weights, choose_layers
from pcn.statistics.collect import Collector, Sampling
from pcn.statistics.forms import SketchOptions
from pcn.statistics.lag import warn_of_lag, watching_lag
from pcn.statistics.passes import Passes
from pcn.statistics.statistics import LayerShape, Statistics

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

OWN_LOSS = "gradients=... yourself, to pcn.analyze or in the analysis of a switch"


def analyze(
    model: nn.Module,
    batches: Batches,
    *,
    forward: Forward | None = None,
    layers: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] = (),
    pool: int | None = None,
    fraction: float | None = None,
    seed: int = 0,
    max_rank: int | None = None,
    passes: int | None = None,
    mode: Mode = "eval",
    gradients: bool | Loss = False,
    group: ProcessGroup | None = None,
) -> Statistics:
    """Measure the inputs of every layer that can be transformed, in one pass over the batches.

    The model runs in eval mode and is unchanged afterwards. With ``mode="batch"`` batch norms use the batch's own
    statistics, as in training: early in a run running ones may lag far behind. With ``mode="train"`` it runs as it
    stands, dropout included. ``layers`` and ``exclude`` are names or globs; ``batches`` may be a function that returns
    them.

    ``pool`` averages a convolution's input over squares of that size first; ``fraction`` measures a random part of each
    batch, another one for each layer. An input too wide for its covariance is sketched so that ``max_rank`` directions
    can be told; another pass refines that, and is made unless ``passes`` is 1 or the batches can be iterated only once.

    With ``gradients`` each batch goes back as well, from a classifier's loss on labels that it predicts itself, or from
    a ``loss(model, batch)`` of one's own, the mean over the batch, which is given as it comes: ``basis="balanced"``
    needs that. Gradients are taken whole: ``pool`` and ``fraction`` are for inputs.

    With a process ``group`` every rank calls this with batches of its own (one may have none) and gets the statistics
    of all of them. Where one rank fails, all raise.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> statistics = analyze(model, [torch.randn(16, 4), torch.randn(16, 4)])
    >>> statistics.samples("2"), statistics.mean("2").shape
    (32, torch.Size([8]))
    """
    ranks = Ranks(group)
    model = unwrap(model)
    asked = None if layers is None else as_list(layers, "layers")

    def choose() -> tuple[Iterable[Any], dict[str, nn.Module], dict[str, str], Loss | None]:
        given = opened(batches)
        check_whole(model)
        check_weights(model)
        check_numbers(pool, fraction, max_rank, passes)
        checked_mode(mode)
        return given, *choose_layers(model, asked, as_list(exclude, "exclude")), _loss(gradients, forward)

    given, wanted, left_alone, loss = ranks.together(choose)
    shapes = {name: LayerShape.of(module) for name, module in wanted.items()}
    options = SketchOptions(max_rank, seed)
    check_same(ranks, (shapes, options, pool, passes, mode, loss is None))
    collector = Collector(wanted, Sampling(pool, fraction, seed), options)
    over = Passes(model, given, forward, ranks)
    with untouched(model, mode), watching_lag(model, when=mode == "eval") as lag:
        example = over.collect_(collector, loss)
        over.refine_(collector, passes)
    ranks.together(lambda: warn_of_lag(model, lag) if ranks.rank == 0 else None)
    unseen = [name for name in wanted if name not in collector.key_of]
    if len(unseen) == len(wanted) or set(unseen) & set(asked or ()):
        raise StatisticsError(f"{unseen[0]!r} was never called with a sample while the batches went through the model")
    left_alone |= dict.fromkeys(unseen, "never called during the pass")
    return Statistics(
        layers={name: collector.key_of[name] for name in wanted if name in collector.key_of},
        left_alone={name: left_alone[name] for name, _ in model.named_modules() if name in left_alone},
        moments=collector.moments,
        shapes=shapes,
        example=example,
        options=options,
        gradients={name: collector.gradients[name] for name in wanted if name in collector.gradients},
        mode=mode,
        pool=pool,
    )


def _loss(gradients: bool | Loss, forward: Forward | None) -> Loss | None:
    if isinstance(gradients, bool):
        return predicted_losses(forward, OWN_LOSS) if gradients else None
    if not callable(gradients):
        raise ConfigError(f"gradients={gradients!r}: give True, or a loss(model, batch) of your own")
    return gradients
