"""Processes that take turns: alone is alone, together is at once, and none holds the others up for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _scripts_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (BENCHMARKS.parent, BENCHMARKS):  # processes import this module by the name that it has here
        monkeypatch.syspath_prepend(str(folder))


def measured(connection: Connection, folder: Path, name: str, ends: str) -> None:
    """Be there while alone, and look who else is; the second part is for all of those that get so far."""
    from turns import Turn

    os.setsid()
    turn = Turn(connection)
    if ends == "dies waiting":
        connection.send({"turn": "alone"})
        os._exit(4)
    for part in (1, 2):
        turn.alone()
        (folder / name).touch()
        time.sleep(0.05)
        connection.send(
            {"name": name, "part": part, "there": [path.name for path in folder.iterdir() if len(path.name) == 1]}
        )
        (folder / name).unlink()
        if ends == "dies":
            os._exit(3)
        if ends == "hangs":
            time.sleep(60)
        turn.together()
        (folder / f"{name}{part}").touch()
        deadline = time.monotonic() + 5
        while not all((folder / f"{other}{part}").exists() for other in "ad") and time.monotonic() < deadline:
            time.sleep(0.01)
        connection.send({"met": all((folder / f"{other}{part}").exists() for other in "ad")})


def hanging(connection: Connection) -> None:
    os.setsid()
    connection.send({"began": True})
    time.sleep(60)


@pytest.mark.slow
@pytest.mark.parametrize(
    "reports",
    ["watched.watched('one', 3.0, hanging)", "turns.in_turns(hanging, [('one', ())], 3.0, time.monotonic() + 9.0)"],
)
def test_a_process_that_is_stopped_says_where_it_was(reports: str) -> None:
    code = f"import time, turns, watched\nfrom test_turns import hanging\nprint(list({reports}))"
    folders = os.pathsep.join([str(BENCHMARKS), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": folders}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "stopped after 3 s" in done.stdout
    assert "in hanging" in done.stderr
    assert ": S, threads S" in done.stderr


@pytest.mark.slow
def test_nobody_is_disturbed_and_whoever_fails_costs_no_other(tmp_path: Path) -> None:
    from turns import in_turns

    ends = {"a": "well", "b": "dies", "c": "hangs", "d": "well", "e": "dies waiting"}
    jobs = [(name, (tmp_path, name, how)) for name, how in ends.items()]
    began = time.monotonic()
    reports = list(in_turns(measured, jobs, 8.0, began + 60.0))
    assert time.monotonic() - began < 60
    seen = [report for _, report in reports if "there" in report]
    assert all(report["there"] == [report["name"]] for report in seen)
    assert [report["met"] for _, report in reports if "met" in report] == [True] * 4
    assert [(r["name"], r["part"]) for r in seen if r["name"] in "ad"] == [("a", 1), ("d", 1), ("a", 2), ("d", 2)]
    failed = [report["failed"] for _, report in reports if "failed" in report]
    assert "b: ended with 3" in failed
    assert "e: ended with 4" in failed
    assert [text for text in failed if text.startswith("c: stopped after")]


@pytest.mark.slow
def test_nothing_goes_on_after_the_end_of_the_time(tmp_path: Path) -> None:
    from turns import in_turns

    reports = list(in_turns(measured, [("a", (tmp_path, "a", "hangs"))], 60.0, time.monotonic() + 6.0))
    assert reports[-1][1]["failed"].startswith("a: stopped after")


@pytest.mark.slow
def test_what_hangs_leaves_time_for_those_that_wait(tmp_path: Path) -> None:
    from turns import in_turns

    jobs = [(name, (tmp_path, name, how)) for name, how in (("c", "hangs"), ("a", "well"), ("d", "well"))]
    reports = list(in_turns(measured, jobs, 60.0, time.monotonic() + 24.0, kept_s=9.0))
    assert [report["failed"].split()[0] for _, report in reports if "failed" in report] == ["c:"]
    parts = [(report["name"], report["part"]) for _, report in reports if report.get("name", "c") in "ad"]
    assert parts == [("a", 1), ("d", 1), ("a", 2), ("d", 2)]
