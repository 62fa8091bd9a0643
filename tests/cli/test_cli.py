"""The command as people run it: a process of its own, its output, its exit code."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import pcn
from pcn.cli import main
from pcn.cli.app import ALIASES, COMMANDS, build_parser
from pcn.cli.settings_flags import GROUPS

PCN = (sys.executable, "-m", "pcn")


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PCN, *arguments], capture_output=True, text=True, timeout=600, check=False, **options)


def short_demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Two epochs; the report does not take the place of one that somebody made in this checkout."""
    how = ("--epochs", "2", "--switch-after", "1", "--report", str(folder / "report.html"))
    return run("demo", *how, *(arguments if "--seeds" in arguments else ("--seeds", "1", *arguments)))


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    return int(exited.value.code or 0)


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of every command."""
    actions = build_parser()._actions
    return next(action.choices for action in actions if isinstance(action, argparse._SubParsersAction))


def test_help_shows_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    shown = capsys.readouterr().out
    assert all(f"    {name} " in shown for name in COMMANDS)
    assert "exit codes" in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out.strip() == f"pcn {pcn.__version__}"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(command, "--help") == 0
    shown = capsys.readouterr().out
    assert f"examples:\n  pcn {command}" in shown
    assert shown.startswith(f"usage: pcn {command}")
    assert all(flag in shown for flag in ("--json", "--debug"))


@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("demo", "--epochs", "many")])
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "error:" in shown.err
    assert shown.err.count("\n") == 1
    assert "--help says what there is" in shown.err


def test_a_flag_that_is_not_there_is_told_from_the_one_that_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("train", "--modle", "conv4") == 2
    assert "pcn train: error: there is no argument --modle; did you mean '--model'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("train --lr 0.1", "--learning-rate"),
        ("train --lrate=0.1", "--learning-rate"),
        ("train --wd 0.1", "--weight-decay"),
        ("train --batch_size 8", "--batch"),
        ("train --optim adam", "--optimizer"),
        ("train --epoch 3", "--epochs"),
        ("train --no-skip", "--no-skip-larger"),
        ("demo --epoch=3", "--epochs"),
        ("plan --model conv4 --batch-size 8", "--batch"),
        ("plan --model conv4 --mem 0.5", "--memory-mib"),
    ],
)
def test_flags_of_other_tools_and_short_forms_are_refused_with_the_flag_that_is_meant(
    given: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*given.split()) == 2
    flag = next(part for part in given.split()[1:] if part.startswith("--") and part != "--model").partition("=")[0]
    assert f"there is no argument {flag}; did you mean '{meant}'?" in capsys.readouterr().err


def test_a_flag_that_a_command_has_not_is_no_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("counts", "--wd", "1") == 2
    assert "there is no argument --wd (pcn counts --help" in capsys.readouterr().err
    assert exit_code("train", "--weights", "w.pt", "--ckpt", "w.pt") == 2
    assert "'--weights'" not in capsys.readouterr().err


def test_flags_of_other_tools_are_for_flags_that_there_are() -> None:
    known = {flag for parser in parsers().values() for action in parser._actions for flag in action.option_strings}
    assert not ALIASES.keys() & known
    assert set(ALIASES.values()) <= known


def test_a_command_that_is_not_there_is_told_from_the_one_that_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("trian", "--epochs", "3") == 2
    assert "pcn: error: there is no command trian; did you mean 'train'?" in capsys.readouterr().err
    assert exit_code("nonsense") == 2
    assert f"there are {', '.join(COMMANDS)} (pcn --help" in capsys.readouterr().err


def test_every_setting_of_a_run_has_its_place_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("train", "--help") == 0
    _, *parts = re.split(r"^(\S.*):\n", capsys.readouterr().out, flags=re.MULTILINE)
    help_of = dict(zip(parts[::2], parts[1::2], strict=True))
    for title, names in GROUPS.items():
        flags = re.findall(r"^  --([a-z-]+)", help_of[title], flags=re.MULTILINE)
        assert [flag.replace("-", "_") for flag in flags] == list(names) or not names
    assert "--learning-rate" in help_of["how it trains"]


def test_help_waits_for_no_torch() -> None:
    code = "import sys, pcn.cli as cli\ntry: cli.main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_gives_its_names_when_they_are_asked_for() -> None:
    code = "import sys, pcn\nassert 'torch' not in sys.modules\nfrom pcn import *\nprint(Switch, pcn.nn, dir(pcn))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pcn.switching.switch.Switch" in done.stdout
    assert all(repr(name) in done.stdout for name in pcn.__all__)
    with pytest.raises(AttributeError, match="module 'pcn' has no attribute 'nothing'"):
        _ = pcn.nothing


def test_counts_as_json() -> None:
    done = run("counts", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    assert [list(row) for row in rows] == [["network", "total", "trainable"]] * 14
    assert {"network": "wide_resnet20-pcn1", "total": 1_223_114, "trainable": 1_094_154} in rows


def test_demo_as_json(tmp_path: Path) -> None:
    done = short_demo(tmp_path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    parent, small, narrower = result["networks"]
    assert [row["network"] for row in result["networks"]] == ["parent", "PCN", "narrower"]
    assert small["trainable"] < parent["trainable"] / 4
    assert narrower["trainable"] == pytest.approx(small["trainable"], rel=0.05)
    assert all(0 <= row["test_accuracy_percent"] <= 100 and row["time_s"] > 0 for row in result["networks"])


def test_demo_tells_the_four_steps(tmp_path: Path) -> None:
    done = short_demo(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("Look", "Plan", "Switch", "fc1", "parent", "narrower", "test accuracy"):
        assert word in done.stdout


def test_demo_of_one_seed_tells_of_no_spread(tmp_path: Path) -> None:
    shown = short_demo(tmp_path).stdout
    assert "split by seed 0" in shown
    assert "After 2 epochs (seed 0)" in shown
    assert "±" not in shown
    several = short_demo(tmp_path, "--seeds", "2").stdout
    assert "After 2 epochs (mean ± standard deviation over 2 seeds)" in several
    assert len(re.findall(r"\d ± \d", several)) == 3


def test_what_cannot_be_done_is_one_line_and_exits_with_1() -> None:
    done = run("report", "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pcn: error: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("demo --epochs 2 --switch-after 2", "switch_after=2 leaves none of the 2 epochs"),
        ("demo --epochs 1", "epochs=1: give at least 2"),
        ("demo --seeds 0", "0 seeds: give at least 1"),
        ("analyze --model conv4 --rank 1.5 --random-inputs 2,3,32,32", "1.5"),
        ("analyze --model conv4 --random-inputs 2,0", "--random-inputs '2,0': give a shape"),
        ("analyze --model conv4 --random-inputs 2,3,32,32 --max-rank 0", "max_rank=0: give a whole number"),
        ("plan --model conv4 --random-inputs 2,3,32,32 --params 2.5", "params=2.5: give a number of them"),
        ("compress --model conv4 --random-inputs 2,3,32,32 --threads 0", "--threads 0: give at least 1"),
    ],
)
def test_values_that_are_wrong_for_every_model_exit_with_2(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "out")] if arguments.startswith("compress") else []
    assert main([*arguments.split(), *out]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("pcn: ")
    assert said in shown.err.splitlines()[-1]


def test_debug_shows_the_traceback() -> None:
    done = run("demo", "--seeds", "0", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "WrongUsageError: 0 seeds" in done.stderr


def test_a_reader_that_leaves_early_is_no_error() -> None:
    with subprocess.Popen([*PCN, "counts"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def everything_shown(terminal: int) -> bytes:
    shown = b""
    with contextlib.suppress(OSError):  # the last writer has gone
        while part := os.read(terminal, 1 << 16):
            shown += part
    return shown


def test_results_are_plain_in_a_pipe_while_a_terminal_shows_progress() -> None:
    terminal, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        [*PCN, "counts"], stdout=subprocess.PIPE, stderr=slave, env=environment, text=True
    ) as process:
        os.close(slave)
        # A terminal holds little: somebody must read along, or the process waits for ever.
        with ThreadPoolExecutor(1) as readers:
            shown = readers.submit(everything_shown, terminal)
            lines = [line.split() for line in process.stdout.read().splitlines()]
            assert b"\x1b[" in shown.result()
    os.close(terminal)
    assert process.returncode == 0
    assert lines[0] == ["network", "total", "trainable"]
    assert lines[-1] == ["wide_resnet50-pcn", "71,936,872", "62,375,016"]
