"""What is known of the inputs of a model's layers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pcn.errors import ConfigError, StatisticsError, suggest
from pcn.layers import canonical_weight, groups_of
from pcn.rank_rules import Rank
from pcn.running.example import Example
from pcn.running.untouched import Mode
from pcn.statistics import eigen, forms
from pcn.statistics.forms import SketchOptions
from pcn.statistics.moments import Moments
from pcn.statistics.spectrum import Spectrum

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class LayerShape:
    """The sizes of a layer that decide what a smaller basis saves."""

    inputs: int
    outputs: int
    groups: int
    taps: int  # positions of the kernel
    bias: bool
    frozen: bool = field(default=False, compare=False)  # then nothing of its weight is trained, and nothing saved
    bias_frozen: bool | None = field(default=None, compare=False)  # None: as the weight

    @classmethod
    def of(cls, module: nn.Module) -> LayerShape:
        weight, groups = canonical_weight(module), groups_of(module)
        outputs, width = weight.shape[:2]
        bias = module.bias if isinstance(module.bias, Tensor) else None
        frozen = not weight.requires_grad, None if bias is None else not bias.requires_grad
        return cls(width * groups, outputs, groups, weight[0, 0].numel(), bias is not None, *frozen)

    @property
    def trainable(self) -> int:
        """Trained numbers of the layer as it stands."""
        return self._trained(self.inputs // self.groups, self.bias)

    def trainable_with(self, rank: int, *, centred: bool = True) -> int:
        """Trained numbers with this many directions in each group: a centred layer then has a bias in any case."""
        return self._trained(rank, self.bias or centred)

    def _trained(self, width: int, bias: bool) -> int:
        biases = bias and not (self.frozen if self.bias_frozen is None else self.bias_frozen)
        return self.outputs * ((not self.frozen) * width * self.taps + biases)


@dataclass
class Statistics:
    """Mean, covariance and spectrum of the input of every layer that was looked at; print it for an overview.

    ``layers`` maps the name of a layer to that of the first layer that reads the same activation; ``left_alone`` gives
    the reason for every other module with parameters. ``gradients`` are, layer by layer, the moments of the loss's
    gradient by what the layer reads, where :func:`pcn.analyze` was asked for them. Everything is in fp64.
    """

    layers: dict[str, str]
    left_alone: dict[str, str]
    moments: dict[str, Moments] = field(repr=False)
    shapes: dict[str, LayerShape] = field(repr=False)
    example: Example | None = field(default=None, repr=False)
    options: SketchOptions = field(default_factory=SketchOptions, repr=False)
    gradients: dict[str, Moments] = field(default_factory=dict, repr=False)
    mode: Mode = "eval"  # of the model meanwhile
    pool: int | None = None  # side of the squares over which inputs of convolutions were averaged first
    remarks: dict[str, str] = field(default_factory=dict, repr=False)  # what else is to be said of a layer
    # What was worked out of each of the moments; statistics about zero share it with those that they were made from.
    _spectra: dict[Moments, Spectrum] = field(default_factory=dict, init=False, repr=False)
    _about_zero: dict[Moments, Moments] = field(default_factory=dict, init=False, repr=False)

    @property
    def mode_without_dropout(self) -> Mode:
        """How the model runs where it is looked at again: batch norm as it was, or as it trains, dropout off."""
        return "eval" if self.mode == "eval" else "batch"

    def samples(self, layer: str) -> int:
        """The number of samples of a layer's input: every position and token counts."""
        return self._of(layer).count

    def shown(self, layer: str) -> int:
        """The most directions of a layer's input that the samples can show."""
        return self._of(layer).shown

    def mean(self, layer: str) -> Tensor:
        """The mean of a layer's input, (inputs,)."""
        return self._of(layer).mean().flatten()

    def mean_within(self, layer: str) -> Tensor:
        """The mean (inputs,) of a layer's input as far as it is not taken off: of :meth:`about_zero`, else 0.

        The covariance is larger by its products than it would be without it.
        """
        return self._of(layer).mean_within().flatten()

    def variance(self, layer: str) -> Tensor:
        """How much a layer's input varies about its mean in each group, (groups,), be that taken off or not."""
        moments = self._of(layer)
        return (moments.variances() - moments.mean_within().square()).clamp_min(0).sum(1)

    def deviations(self, layer: str) -> Tensor:
        """The standard deviation of every input of a layer, (groups, width)."""
        return self._of(layer).variances().clamp_min(0).sqrt()

    def covariance(self, layer: str) -> Tensor:
        """The covariance of a layer's input with 1 / (samples - 1), (groups, width, width)."""
        with naming(layer):
            return self._of(layer).covariance()

    def gradient_moments(self, layer: str) -> Tensor:
        """The second moment E[g gᵀ] of the loss's gradient by a layer's input, (groups, width, width)."""
        self.check_gradients(layer)
        with naming(layer):
            return self.gradients[layer].second_moment()

    def check_gradients(self, layer: str) -> None:
        """Raise unless gradients were taken by a layer's input."""
        self._of(layer)
        if layer not in self.gradients:
            raise StatisticsError(
                f"the statistics of {layer!r} hold no gradients: analyze with gradients=True (pcn analyze --basis "
                f"balanced), which goes up to {forms.WIDEST_BASIS:,} inputs"
            )

    def spectrum(self, layer: str) -> Spectrum:
        """The eigenvalues and eigenvectors of the covariance, found as far as they are asked for."""
        moments = self._of(layer)
        if moments not in self._spectra:
            with naming(layer):
                self._spectra[moments] = Spectrum(moments, self.layers[layer])
        return self._spectra[moments]

    def basis(self, layer: str, rank: int) -> Tensor:
        """The leading directions (inputs, rank): orthonormal columns within each group's rows."""
        return self.spectrum(layer).leading(rank)[1].flatten(0, 1)

    def block_basis(self, layer: str, kept: Tensor, rank: int) -> tuple[Tensor, Tensor]:
        """The leading directions of the kept inputs alone, (kept, rank), and their variances, (groups, rank).

        They are those of that block of the covariance. ``kept`` counts over all groups and holds the same number of
        inputs in each. Columns beyond that number are 0.
        """
        covariance = self.covariance(layer)
        groups, width = covariance.shape[:2]
        index = kept.to(covariance.device).reshape(groups, -1) % width
        block = torch.stack([c[i][:, i] for c, i in zip(covariance, index, strict=True)])
        values, vectors = eigen.full(block)
        missing = (0, max(0, rank - vectors.shape[-1]))
        vectors = torch.nn.functional.pad(vectors[..., :rank], missing).flatten(0, 1)
        return vectors, torch.nn.functional.pad(values[..., :rank], missing)

    def about_zero(self, layers: Iterable[str]) -> Statistics:
        """The same, but of these layers' inputs as if their mean were 0: E[x xᵀ] in place of the covariance.

        Those of them that read the same activation still share it. They are neither saved nor merged, nor do centred
        layers go by them.
        """
        wanted = {name for name in layers if name in self.layers and not self._of(name).from_zero}
        if not wanted:
            return self
        read: dict[str, Moments] = {}
        for name in self.layers:
            moments = self._of(name)
            read[name] = self._about_zero.setdefault(moments, moments.about_zero()) if name in wanted else moments
        first: dict[Moments, str] = {}
        layers = {name: first.setdefault(moments, name) for name, moments in read.items()}
        about = replace(self, layers=layers, moments={name: moments for moments, name in first.items()})
        about._spectra, about._about_zero = self._spectra, self._about_zero
        return about

    def check_about_the_mean(self, layers: Iterable[str], what: str) -> None:
        """Raise where the mean of one of these layers' inputs counts as 0: that cannot be ``what`` is wanted."""
        name = next((name for name in layers if name in self.layers and self._of(name).from_zero), None)
        if name is not None:
            raise StatisticsError(
                f"statistics about zero, as {name!r} has, cannot be {what}: take those that about_zero was asked of"
            )

    def merge(self, other: Statistics) -> Statistics:
        """Return the statistics of both sets of samples, as if one pass had seen them all.

        Both must be of the same model with the same weights, which cannot be seen here. Layers of either side are in
        it; one that only one side was asked to measure has that side's samples, and a remark.
        """
        from pcn.statistics.merging import merge

        for side in (self, other):
            side.check_about_the_mean(side.layers, "merged")
        return merge(self, other)

    def table(self, rule: Rank | None = None) -> str:
        """Answer "which of my layers are too wide?" for a rank rule, by default that of ``PCNConfig()``."""
        from pcn.statistics.table import table

        return table(self, rule)

    def plot(self, rule: Rank | None = None, *, layers: Sequence[str] | None = None) -> Figure:
        """Draw the spectra, and what a rank rule keeps of them, with matplotlib."""
        from pcn.display.plots import plot_statistics

        return plot_statistics(self, rule, layers)

    def _repr_html_(self) -> str:
        from pcn.display.html import statistics_html

        return statistics_html(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything into one safetensors file, for :meth:`load`."""
        from pcn.statistics.saved import save

        self.check_about_the_mean(self.layers, "saved")
        save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Statistics:
        """Read what :meth:`save` wrote; a forward function of one's own is not in it."""
        from pcn.statistics.saved import load

        return load(path)

    def __str__(self) -> str:
        return self.table()

    def _of(self, layer: str) -> Moments:
        if layer not in self.layers:
            if layer in self.left_alone:
                raise ConfigError(f"{layer!r} was not measured: {self.left_alone[layer]}")
            raise ConfigError(f"no statistics of {layer!r}{suggest(layer, self.layers)}")
        return self.moments[self.layers[layer]]


@contextmanager
def naming(layer: str) -> Iterator[None]:
    """Say which layer's moments cannot answer."""
    try:
        yield
    except StatisticsError as error:
        raise StatisticsError(f"{layer!r}: {error}") from None
