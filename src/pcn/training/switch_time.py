"""When a run switches, as its settings say it, and whether that is in time."""

from __future__ import annotations

import re
from dataclasses import fields

from pcn.errors import ConfigError
from pcn.switching import AccuracySlows, AfterEpoch, AfterStep, SubspacesSettle, SwitchRule
from pcn.training.settings import Settings


def switch_rule(settings: Settings) -> SwitchRule | None:
    """The rule that says when to switch, None for never; raises where the settings alone tell that this cannot be."""
    rule = parse_switch(settings.switch_at)
    if rule is None:
        _check_no_switch(settings)
    elif isinstance(rule, AfterEpoch) and rule.epoch + settings.fade_epochs >= settings.epochs:
        raise _too_late(settings, f"{settings.epochs} epochs")
    return rule


def check_in_time(settings: Settings, rule: SwitchRule, steps_per_epoch: int) -> None:
    """Raise when a rule that counts epochs or steps leaves none of the run to the network it makes."""
    if isinstance(rule, AfterEpoch):
        begin = rule.epoch * steps_per_epoch
    elif isinstance(rule, AfterStep):
        begin = rule.step
    else:
        return
    steps = settings.epochs * steps_per_epoch
    if begin + fade_steps(settings, steps_per_epoch) >= steps:
        raise _too_late(settings, f"{settings.epochs} epochs ({steps} steps)")


def _too_late(settings: Settings, run: str) -> ConfigError:
    faded = f" with fade_epochs={settings.fade_epochs:g}" if settings.fade_epochs else ""
    return ConfigError(
        f"switch_at={settings.switch_at!r}{faded} leaves none of the {run} to train the PCN in: switch earlier, or "
        "train longer"
    )


def _check_no_switch(settings: Settings) -> None:
    """Raise when anything is asked of a switch that never comes."""
    asked = settings.differences(Settings())
    for each in fields(settings):
        if each.metadata.get("of_switch") and each.name in asked:
            raise ConfigError(
                f"{each.name}={getattr(settings, each.name)!r}, but switch_at is 'never': say when (switch_at=15, or "
                f"--switch-at 15), or leave {each.name} out"
            )


def fade_steps(settings: Settings, steps_per_epoch: int) -> int:
    """Over how many steps what the cut takes away fades: at least one where it is to fade at all."""
    return max(round(settings.fade_epochs * steps_per_epoch), 1 if settings.fade_epochs > 0 else 0)


def parse_switch(text: str) -> SwitchRule | None:
    """Read when to switch; None is never.

    >>> parse_switch("15"), parse_switch("step 500"), parse_switch("never")
    (AfterEpoch(epoch=15), AfterStep(step=500), None)
    """
    named: dict[str, SwitchRule | None] = {
        "never": None,
        "accuracy slows": AccuracySlows(),
        "subspaces settle": SubspacesSettle(),
    }
    if text in named:
        return named[text]
    if match := re.fullmatch(r"(step )?(\d+)", text):
        return AfterStep(int(match[2])) if match[1] else AfterEpoch(int(match[2]))
    raise ConfigError(f'switch_at={text!r}: give an epoch, "step 500" or one of {", ".join(map(repr, named))}')
