"""``pcn train``: train a model, and make it a principal component network on the way."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pcn.cli.command import Command, wrong_usage
from pcn.cli.screen import Screen
from pcn.cli.settings_flags import add_settings, checked_settings, given_settings
from pcn.cli.subject import set_threads
from pcn.cli.wording import advising_samples
from pcn.errors import FileError
from pcn.report import of_run, write_report
from pcn.training import RunFolder, Settings, Trainer, World, load_data, world
from pcn.training.events import Events, tensorboard_is_there
from pcn.training.run_folder import REPORT
from pcn.training.settings import read_toml
from pcn.training.step import training_dtype
from pcn.training.switch_time import switch_rule

Record = dict[str, Any]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    named = "a file with settings, named as below with _ for -; flags win over it"
    parser.add_argument("settings", nargs="?", type=Path, metavar="SETTINGS.toml", help=named)
    parser.add_argument("--out", type=Path, metavar="DIR", help="the run's folder (default: runs/MODEL-DATA-SEED)")
    parser.add_argument("--device", metavar="NAME", help="cpu or cuda (default: cuda where there is one)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's choice)")
    parser.add_argument("--compile", action="store_true", help="have torch.compile make the steps faster")
    parser.add_argument("--fuse", action="store_true", help="run norms, ReLUs and projections in one pass, on a GPU")
    add_settings(parser)


def _run(arguments: argparse.Namespace, screen: Screen) -> None:
    set_threads(arguments.threads)
    settings = _settings(arguments)
    out = arguments.out or Path("runs") / f"{_short(settings.model)}-{_short(settings.data)}-{settings.seed}"
    with advising_samples(arguments), world(arguments.device) as here, ExitStack() as stack:
        folder = stack.enter_context(RunFolder(out, settings)) if here.first else None
        faster = {"compiled": arguments.compile, "fused": arguments.fuse}
        _train(settings, folder, here, faster, screen if here.first else Screen(json=True))


def _settings(arguments: argparse.Namespace) -> Settings:
    """What the file says and the flags, which win."""
    with wrong_usage():
        named = read_toml(arguments.settings) if arguments.settings else {}
        settings = checked_settings({**named, **given_settings(arguments)})
        switch_rule(settings)
    return settings


def _train(settings: Settings, folder: RunFolder | None, here: World, faster: dict[str, bool], screen: Screen) -> None:
    """Train; only the first process has the folder, and speaks."""
    data = load_data(settings, here.device, training_dtype(here.device))
    steps = settings.epochs * data.steps(settings.batch)
    with screen.progress(steps) as bar:
        trainer = Trainer(settings, data, folder, world=here, compiled=faster["compiled"], fused=faster["fused"])
        trainer.stepped = lambda: bar.update(bar.task_ids[0], completed=trainer.progress.step)
        if folder is not None:
            trainer.begun = lambda: _introduce(trainer, folder.path, screen)
            trainer.tell = _reporter(trainer, folder.path, screen)
        result = trainer.run()
    assert result is not None
    screen.text(
        f"test accuracy {result['test_accuracy']:.2f}%, validation {result['validation_accuracy']:.2f}%, "
        f"{result['trainable_params']:,} trained parameters of {result['total_params']:,}"
    )
    if folder is not None:
        if trainer.switch is not None and trainer.switch.plan is None:
            screen.warn(_never_switched(settings, result["epoch"]))
        page = _report(folder.path)
        screen.text(f"the report is in {page}")
        screen.result({"folder": str(folder.path), "report": str(page), **result})


def _report(run: Path) -> Path:
    try:
        return write_report(run / REPORT, of_run(run))
    except FileError as error:
        left = f"the run itself is complete: mend that, and have the page by pcn report {run}"
        raise FileError(f"{error}; {left}") from error


def _never_switched(settings: Settings, last: int) -> str:
    said = f"the switch never came, and the model is whole: {settings.switch_at!r} did not come true before "
    if last < settings.epochs:
        ended = f"patience={settings.patience} ended the run after epoch {last}"
        return f"{said}{ended}; switch earlier, or be more patient"
    return f"{said}the last epoch, {last}; train longer, or give --switch-at an epoch"


def _introduce(trainer: Trainer, out: Path, screen: Screen) -> None:
    """Say what begins."""
    settings = trainer.settings
    screen.text(f"{settings.model} on {settings.data}, {settings.epochs} epochs on {trainer.world.name}, in {out}")
    if not tensorboard_is_there():
        screen.text("TensorBoard is not installed, so no events are written (pip install tensorboard)")


def _reporter(trainer: Trainer, out: Path, screen: Screen) -> Callable[[Record], None]:
    """Say what happens, and keep it for TensorBoard."""
    events: list[Events] = []
    first_step = 0  # whose events are made anew

    def tell(record: Record) -> None:
        nonlocal first_step
        if record["event"] != "dimensions":
            screen.text(_line(record, trainer.settings.epochs))
        if record["event"] == "switch" and trainer.switch is not None:
            screen.text(trainer.switch.plan)
        if record["event"] == "resumed":
            first_step = record["step"] + 1  # what was logged at the checkpoint's own step stands before it
        elif tensorboard_is_there():
            if not events:
                events.append(Events(out / "events", first_step))
            events[0].write(record)

    return tell


def _line(record: Record, epochs: int) -> str:
    if record["event"] == "resumed":
        damaged = "".join(f"; {name} is damaged and was passed over" for name in record["damaged"])
        return f"goes on after epoch {record['epoch']}, step {record['step']:,}{damaged}"
    if record["event"] == "fade":
        return f"step {record['step']:,}: what the cut takes away fades over {record['steps']:,} steps"
    if record["event"] == "switch":
        left = record["fade_steps_left"]
        return (
            f"switch in {record['seconds']:.1f} s: {record['trainable_before']:,} -> {record['trainable_after']:,} "
            f"trained parameters, validation {record['validation_accuracy']:.2f}% right after"
            + (f"; cut {left:,} steps before the fade was over" if left else "")
        )
    if record["event"] == "fused":
        forms = Counter(record["forms"].values())
        layers = ", ".join(f"{count} {form}" for form, count in forms.items()) or "none has a choice"
        alone = "".join(f"; {name} left alone: {why}" for name, why in record["left_alone"].items())
        return f"nothing fused: {record['reason']}" if record["reason"] else f"layers as fastest here: {layers}{alone}"
    if record["event"] == "ready":
        return f"the step is ready after {record['seconds']:.1f} s"
    return (
        f"epoch {record['epoch']}/{epochs}: loss {record['loss']:.4f}, "
        f"validation {record['validation_accuracy']:.2f}%, learning rate {record['learning_rate']:g}"
    )


def _short(name: str) -> str:
    return name.rpartition(":")[2]


COMMAND = Command(
    name="train",
    description="Train a classifier and turn it into its principal component network when the time has come.\n"
    "A run that was stopped or killed goes on where it was when the same command is given again.\n"
    "Several processes: torchrun --nproc-per-node 4 -m pcn train ...",
    examples=(
        "pcn train --model pcn.demo.network:DigitsNetwork --data digits --optimizer adam --learning-rate 0.003"
        " --switch-at 5 --rank 95%",
        "pcn train --model conv4 --data cifar10 --data-dir ~/data --optimizer adam --learning-rate 0.001 --batch 60"
        " --scale unit --epochs 20 --switch-at 2 --pcn conv4-pcn",
        "pcn train my_run.toml --seed 1 --out runs/second",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
