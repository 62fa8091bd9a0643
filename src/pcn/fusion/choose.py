"""The best form of each principal component layer: every one is run on this device with the layer's own sizes."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pcn.costs.kept import Kept
from pcn.costs.timing import step_ns
from pcn.errors import ConfigError
from pcn.fusion.find import find_chains
from pcn.fusion.found import Found, Search
from pcn.fusion.fuse import attach_, layers_with_forms, unfuse_
from pcn.fusion.layers import forms_of
from pcn.fusion.standin import full
from pcn.fusion.switch import fuses
from pcn.layers import unwrap
from pcn.nn import PCModule
from pcn.plans.plan import FORMS, Form
from pcn.running.example import Example
from pcn.running.untouched import untouched

KEPT_COUNTS = 0.25  # a power: for twice the memory until the backward pass, a form has to be 19% faster


def choose_forms(
    model: nn.Module, example: Any, *, among: Sequence[Form] = FORMS, norms: bool = True
) -> dict[str, Form]:
    """Time a training step of each layer in every form of ``among``, and return the best, by name.

    That is the fastest, unless another keeps less for the backward pass and is hardly slower, or all layers together
    would keep more than those of the parent did. Autocast counts as it is where this is called. Layers of the same
    sizes are timed once, with the batch norms around them, whose full width is written where others read it too;
    without ``norms`` alone, and with stock code but for what is folded, as :func:`fuse_` has them.
    """
    if not among or not set(among) <= set(FORMS):
        raise ConfigError(f"among={among!r}: give at least one of {', '.join(FORMS)}")
    base = unwrap(model)
    unfuse_(base)
    given = Example.for_model(base, example)
    layers = layers_with_forms(base)
    search = find_chains(base, given, dict.fromkeys(layers, "fused")) if norms else Search()
    before = {reader: chain for chain in search.chains for reader in chain.readers}
    after = {chain.source: base.get_submodule(chain.norm) for chain in search.chains}
    inputs = _inputs(base, given, layers)
    choices: dict[str, _Choice] = {}
    known: dict[str, dict[Form, float]] = {}
    for name, layer in layers.items():
        chain = before.get(name)
        if name not in inputs or (chain is not None and name != chain.readers[0]):
            continue
        norm, written = (None, False) if chain is None else (base.get_submodule(chain.norm), chain.emit)
        kept = chain is None or (written and (chain.added or chain.beside))
        place = _Place(norm, layer, after.get(name), stock=not norms, written=written, kept=kept)
        like = inputs[name]
        sizes = f"{layer} {tuple(like.shape)} {like.dtype} {place.around}"
        if sizes not in known:
            known[sizes] = _seconds(place, like, among)
        choices[name] = _Choice(place, like.numel() // place.sizes[0], known[sizes])
    found = _chosen(choices)
    for chain in search.chains:  # one reader at the full width, and a projection for the others saves little
        found |= dict.fromkeys(chain.readers, found[chain.readers[0]]) if chain.readers else {}
    return {name: found[name] for name in layers if name in found}


def _inputs(model: nn.Module, example: Example, layers: dict[str, PCModule]) -> dict[str, Tensor]:
    """Random numbers like those that each layer reads first."""
    kept = Kept.beside(())
    with untouched(model), kept.layers_named(layers):
        example.call(model)
        return {name: reads[0].like() for name, reads in kept.reads.items()}


@dataclass(frozen=True)
class _Place:
    """A layer between the batch norms, if there are any, that run in one pass with it.

    Where there are to be none it runs with ``stock`` code, unless it is folded. What it reads may be ``written`` at its
    full width in any case, as others read it, and ``kept`` too: behind a sum it shows where ReLU let through, and
    layers with other bases need it for their weights' gradients. What comes from elsewhere is kept by whoever made it.
    """

    before: nn.Module | None
    layer: PCModule
    after: nn.Module | None
    stock: bool
    written: bool
    kept: bool

    @property
    def around(self) -> tuple[bool, ...]:
        """What there is around the layer."""
        return self.before is not None, self.after is not None, self.written, self.kept

    @property
    def sizes(self) -> tuple[int, int]:
        """Inputs and directions; a layer without these has no choice of forms."""
        assert self.layer.basis is not None
        return self.layer.basis.shape[0], self.layer.basis.shape[1]

    def keeps(self, form: Form) -> int:
        """What is kept for the backward pass at every position: what the norm reads, the full width, a projection.

        Of stock code nothing is known: what stands around a layer there keeps what it likes.
        """
        width, rank = self.sizes
        if form == "folded" or self.stock:
            return 2 * width
        return (2 * width if self.kept else width) + rank

    def part(self, form: Form) -> nn.Module:
        """A small model of this place, with a ReLU in front of the layer."""
        modules = {"layer": self.layer} if self.after is None else {"layer": self.layer, "after": self.after}
        if self.before is not None:
            modules = {"before": self.before, "relu": nn.ReLU(), **modules}
        kind = _Branching if self.written else nn.Sequential
        part = kind(OrderedDict((name, copy.deepcopy(module)) for name, module in modules.items()))
        readers = ("layer",) if form == "fused" else ()
        emit = self.written or not readers
        chains = [Found("before", relu=True, emit=emit, readers=readers), Found("after", source="layer")]
        if not (self.stock and form == "factored"):
            attach_(part, Search([chain for chain in chains if chain.norm in modules]), {"layer": form})
        return part.train()


class _Branching(nn.Sequential):
    """A batch norm, its ReLU and what follows them; the full width goes elsewhere too."""

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:
        norm, relu, *others = self
        between = output = relu(norm(input))
        for module in others:
            output = module(output)
        return full(between), output


@dataclass(frozen=True)
class _Choice:
    """What is known of a layer that has a form to be chosen."""

    place: _Place
    positions: int
    seconds: Mapping[Form, float]

    @property
    def best(self) -> Form:
        return min(self.seconds, key=lambda form: self.seconds[form] * self.place.keeps(form) ** KEPT_COUNTS)

    def more(self, form: Form) -> int:
        """How many numbers more than the parent's layer are kept for the backward pass."""
        return self.positions * (self.place.keeps(form) - self.place.keeps("folded"))

    def may_fold(self, form: Form) -> bool:
        """Whether a layer runs in one pass with a norm, and would keep less folded."""
        return form == "fused" and self.more(form) > 0 and "folded" in self.seconds

    def price(self, form: Form) -> float:
        """The seconds that folding the layer costs, for each number that it saves."""
        return (self.seconds["folded"] - self.seconds[form]) / self.more(form)


def _chosen(choices: Mapping[str, _Choice]) -> dict[str, Form]:
    """The best form of each, such that all together keep no more than the parent's layers, as far as our passes go.

    Layers that stand by themselves run as is best for each: dense ones are much faster for the little that they keep.

    There is to be room for one more gradient of the last layer's input, where the backward pass begins and all is kept:
    a compiler writes it over what it is made of, our passes do not.
    """
    forms = {name: choice.best for name, choice in choices.items()}
    *_, last = choices.values() or [None]
    room = 0 if last is None else last.positions * last.place.sizes[0]
    large = [name for name, form in forms.items() if choices[name].may_fold(form)]
    for name in sorted(large, key=lambda name: choices[name].price(forms[name])):
        if sum(choices[each].more(form) for each, form in forms.items()) + room <= 0:
            break
        forms[name] = "folded"
    return forms


def _seconds(place: _Place, like: Tensor, among: Sequence[Form]) -> dict[Form, float]:
    """How long a step of one layer takes in every form that it can have, together with the batch norms around it."""
    fusible = place.before is not None and fuses(like)  # without kernels it would be the factored form by another name
    possible = [form for form in forms_of(place.layer) if form != "fused" or fusible]
    forms = [form for form in FORMS if form in among and form in possible] or ["factored"]
    return {form: time_s(place.part(form), like) for form in forms} if len(forms) > 1 else {forms[0]: 0.0}


def time_s(part: nn.Module, x: Tensor) -> float:
    """The shortest of a few steps, forward and backward."""
    x = x.detach().requires_grad_()
    return step_ns(lambda: part(x), [x, *part.parameters()], x.device) / 1e9
