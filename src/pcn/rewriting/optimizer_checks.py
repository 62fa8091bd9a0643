"""The optimizers that are given, and whether they can follow: said before anything changes."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence

from torch import nn
from torch.optim import LBFGS, Optimizer

from pcn.config import PCNConfig
from pcn.errors import PlanError
from pcn.rewriting.groups import held_by, members_after
from pcn.rewriting.optimizer import CARRIED, Kinds, first_state, unknown_entries
from pcn.rewriting.replaced import Replaced
from pcn.warn import warn

NAMED = 3  # how many parameters a message names


def check_could_follow(
    optimizers: Sequence[Optimizer], layers: Mapping[str, nn.Module], config: PCNConfig, *, strict: bool
) -> None:
    """Raise for an optimizer that could follow no plan for these layers, which would show epochs later."""
    likely = [_any_change(layer, config, name) for name, layer in layers.items()]
    for optimizer in optimizers:
        held = held_by([optimizer])
        if likely and all(id(change.old) in held for change in likely):  # whatever is replaced, it has some of it
            check_optimizers([optimizer], likely, strict=strict, quiet=True)
            if all(change.gained for change in likely):
                first_state(optimizer, members_after(optimizers, likely))


def check_optimizers(
    optimizers: Sequence[Optimizer],
    replaced: Sequence[Replaced],
    *,
    strict: bool,
    quiet: bool = False,
    carried: Kinds = CARRIED,
) -> None:
    """Say beforehand whether the state of what is replaced can go along: warn that it is reset, or refuse if strict."""
    for optimizer in optimizers:
        held = held_by([optimizer])
        leaving = [change.old for change in replaced if id(change.old) in held]
        if leaving and isinstance(optimizer, LBFGS):
            raise PlanError(
                "LBFGS keeps one history of all parameters together, which no replaced parameter fits into; "
                "switch without it and make a new one afterwards"
            )
        if leaving and (why := _why_afresh(optimizer, leaving, carried)):
            text = f"{type(optimizer).__name__} {why}: its state for replaced parameters starts afresh"
            object_to(text, strict=strict, quiet=quiet)


def check_holds(
    optimizers: Sequence[Optimizer],
    replaced: Sequence[Replaced],
    model: nn.Module,
    *,
    strict: bool,
    quiet: bool = False,
) -> None:
    """Raise unless optimizers have some of the parameters that give way, and take those that come in their place.

    Trainable ones that no optimizer has would stand still from then on: warn, or refuse in strict mode.
    """
    if not optimizers:
        return
    held = held_by(optimizers)
    trained = [change.old for change in replaced if change.old.requires_grad]
    lacking = [parameter for parameter in trained if id(parameter) not in held]
    if lacking and len(lacking) == len(trained):
        raise PlanError(
            f"the optimizer holds none of the parameters that are replaced ({_named(lacking, model)}); give the one "
            f"that trains this model{_strangers(held, model)}"
        )
    if lacking:
        object_to(
            f"no optimizer that was given holds {_named(lacking, model)}, so that nothing trains what takes their "
            "place: give all optimizers, as in optimizer=[one, other], or freeze these parameters first, with "
            f"requires_grad_(False){_strangers(held, model)}",
            strict=strict,
            quiet=quiet,
        )
    after = members_after(optimizers, replaced)
    for optimizer in optimizers:
        first_state(optimizer, after)


def warn_of_forgotten(optimizers: Sequence[Optimizer], replaced: Sequence[Replaced], model: nn.Module) -> None:
    """Warn where none is given although there is one, which would train what nothing reads any more.

    Gradients say that the model is in training; without them nothing is looked for, as that takes a tenth of a second.
    """
    leaving = [change.old for change in replaced]
    if optimizers or all(parameter.grad is None for parameter in leaving):
        return
    if _living(leaving):
        gc.collect()  # what only refers to itself, as with a scheduler, is as good as gone
    if forgotten := _living(leaving):
        kinds = " and ".join(sorted({type(each).__name__ for each in forgotten}))
        held = held_by(forgotten)
        trained = [parameter for parameter in leaving if id(parameter) in held]
        warn(
            f"no optimizer was given, and the {kinds} that holds {_named(trained, model)} goes on with parameters that "
            "nothing reads any more: give it, as in optimizer=..., or make a new one afterwards and let go of this one"
        )


def _living(parameters: Sequence[nn.Parameter]) -> list[Optimizer]:
    """The optimizers that anybody has and that hold one of these."""
    ids = {id(parameter) for parameter in parameters}
    every = [each for each in gc.get_objects() if issubclass(type(each), Optimizer)]  # isinstance would ask proxies
    return [each for each in every if hasattr(each, "param_groups") and not ids.isdisjoint(held_by([each]))]


def _any_change(layer: nn.Module, config: PCNConfig, name: str) -> Replaced:
    """What any plan would do to a layer, as far as optimizers are concerned."""
    assert isinstance(layer.weight, nn.Parameter)
    rule = config.rule_for(name)[0]
    loses_no_mean = config.keep_dropped and rule.rank is None and rule.output_rank is not None
    gains = layer.bias is None and config.centres(name) and not loses_no_mean
    gained = (("bias", nn.Parameter(layer.weight.detach().new_zeros(1))),) if gains else ()
    return Replaced(layer.weight, layer.weight, None, gained=gained)


def _why_afresh(optimizer: Optimizer, leaving: list[nn.Parameter], carried: Kinds) -> str | None:
    if not isinstance(optimizer, carried):
        *rest, last = [kind.__name__ for kind in carried]
        return f"is not {', '.join(rest)} or {last}" if rest else f"is not {last}"
    states = [optimizer.state.get(parameter) or {} for parameter in leaving]
    unknown = sorted({entry for state in states for entry in unknown_entries(state)})
    return f"remembers {unknown[0]!r}, which is unknown" if unknown else None


def object_to(text: str, *, strict: bool, quiet: bool = False) -> None:
    """Warn of what is lost, or refuse it if strict."""
    if strict:
        raise PlanError(f"{text}; pass strict=False to accept that")
    if not quiet:
        warn(text)


def _named(parameters: list[nn.Parameter], model: nn.Module) -> str:
    """A few names, then how many there are besides."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    said = ", ".join(repr(names[id(parameter)]) for parameter in parameters[:NAMED])
    return f"{said} and {len(parameters) - NAMED} more" if len(parameters) > NAMED else said


def _strangers(held: set[int], model: nn.Module) -> str:
    """What to do where optimizers hold parameters that the model does not have, or has no longer."""
    count = len(held - {id(parameter) for parameter in model.parameters()})
    if not count:
        return ""
    return (
        f"; {count} of those that it holds are not in this model: after pcn.fold_, make a new optimizer, or have it "
        "come along, as in pcn.fold_(model, optimizer=...)"
    )
