"""Runs in processes of their own: none costs another anything, whatever happens to it."""

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from child_work import drives, fails_at_first, killed, lingers, own_number, wants_a_package


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def comes_true(found: Callable[[], Any], within_s: float = 60) -> bool:
    deadline = time.time() + within_s
    while not found() and time.time() < deadline:
        time.sleep(0.1)
    return bool(found())


def test_each_run_has_a_process_of_its_own_and_waits_for_others(capfd: pytest.CaptureFixture[str]) -> None:
    from processes import Undone, run_each

    answers: dict[str, Any] = {}
    work = {"root": (math.sqrt, 4.0), "wrong": (math.sqrt, -1.0), "later": (abs, -1)}

    def ready(item: str, running: Any) -> bool:
        return item != "later" or "root" in answers

    undone = run_each(["later", "root", "wrong"], work.__getitem__, answers.__setitem__, together=2, ready=ready)
    assert answers == {"root": 2.0, "later": 1}
    assert undone == Undone(failed=["wrong"])
    assert "ValueError" in capfd.readouterr().err


@pytest.mark.parametrize("reuse", [False, True])
def test_one_that_dies_costs_no_other(reuse: bool, capfd: pytest.CaptureFixture[str]) -> None:
    from processes import run_each

    answers: dict[str, Any] = {}
    work = {"dies": (killed, 9), "lives": (time.sleep, 0.5), "comes later": (abs, -1)}
    assert run_each(list(work), work.__getitem__, answers.__setitem__, together=2, reuse=lambda _: reuse).failed == [
        "dies"
    ]
    assert answers == {"lives": None, "comes later": 1}
    assert "dies ended with -9" in capfd.readouterr().out


@pytest.mark.parametrize("reuse", [False, True])
def test_a_process_is_used_again_where_that_is_asked_for(reuse: bool) -> None:
    from processes import Undone, run_each

    answers: dict[int, int] = {}
    how = {"reuse": lambda item: reuse and item != 2}
    assert run_each([1, 2, 3], lambda item: (own_number, item), answers.__setitem__, **how) == Undone()
    assert (answers[1] == answers[3]) is reuse
    assert answers[2] not in (answers[1], answers[3])


def test_a_process_that_nothing_is_left_for_is_let_go() -> None:
    from processes import run_each

    answers: dict[int, int] = {}
    there: dict[int, bool] = {}

    def done(item: int, answer: int) -> None:
        answers[item] = answer
        deadline = time.time() + 30
        while item == 2 and is_there(answers[1]) and time.time() < deadline:
            os.waitpid(answers[1], os.WNOHANG)  # or it stays in the table of processes
        there[item] = is_there(answers[1])

    run_each([1, 2], lambda item: (own_number, item), done, reuse=lambda item: item == 1)
    assert there == {1: True, 2: False}


def test_a_process_in_which_something_failed_is_not_used_again(capfd: pytest.CaptureFixture[str]) -> None:
    from processes import run_each

    answers: dict[str, Any] = {}
    work = {"first": (own_number, 0), "wrong": (math.sqrt, -1.0), "last": (own_number, 0)}
    assert run_each(list(work), work.__getitem__, answers.__setitem__, reuse=lambda _: True).failed == ["wrong"]
    assert answers["first"] != answers["last"]
    assert "ValueError" in capfd.readouterr().err


def test_the_next_begins_while_a_process_is_still_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    import processes

    monkeypatch.setattr(processes, "ENDING_S", 0.5)
    answers: dict[str, int] = {}
    still_there = []

    def work(item: str) -> Any:
        if item == "next":
            still_there.append(is_there(answers["slow"]))
        return {"slow": lingers, "next": own_number}[item], None

    assert processes.run_each(["slow", "next"], work, answers.__setitem__) == processes.Undone()
    assert still_there == [True]
    assert not is_there(answers["slow"])


@pytest.mark.parametrize(("together", "given", "found"), [(2, None, "1"), (2, "7", "7"), (1, None, None)])
def test_processes_side_by_side_share_the_cores(
    together: int, given: str | None, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from processes import run_each

    name = "TORCHINDUCTOR_COMPILE_THREADS"
    monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv(name, given)
    answers: dict[str, str | None] = {}
    run_each([name], lambda item: (os.getenv, item), answers.__setitem__, together=together)
    assert answers == {name: found}
    assert os.environ.get(name) == given  # the driver's own stays


def test_what_does_not_fit_into_the_time_lets_others_go_first_and_is_named() -> None:
    from processes import Undone, run_each

    answers: dict[float, Any] = {}
    short = lambda item, running: item < 3  # noqa: E731
    ready = lambda item, running: item != 2.0  # noqa: E731
    undone = run_each([9.0, 1.0, 2.0], lambda item: (abs, item), answers.__setitem__, fits=short, ready=ready)
    assert undone == Undone(waiting=[2.0], late=[9.0])
    assert answers == {1.0: 1.0}


@pytest.mark.parametrize(("held", "order"), [(True, "running first last"), (False, "running last first")])
def test_a_place_is_kept_for_an_earlier_item_that_is_about_to_be_ready(held: bool, order: str) -> None:
    from processes import Undone, run_each

    started, answers = list[str](), dict[str, Any]()

    def work(item: str) -> Any:
        started.append(item)
        return time.sleep, 1.0 if item == "running" else 0.0

    undone = run_each(
        ["first", "running", "last"],
        work,
        answers.__setitem__,
        together=2,
        ready=lambda item, running: item != "first" or "running" in answers,
        holds=lambda earlier, item, running: held and (earlier, item) == ("first", "last") and "running" in running,
    )
    assert undone == Undone()
    assert started == order.split()


def test_no_more_places_are_kept_than_earlier_items_hold() -> None:
    from processes import run_each

    started, answers = list[str](), dict[str, Any]()

    def work(item: str) -> Any:
        started.append(item)
        return time.sleep, 1.0 if item == "running" else 0.0

    run_each(
        ["first", "running", "second", "third"],
        work,
        answers.__setitem__,
        together=3,
        ready=lambda item, running: item != "first" or "running" in answers,
        holds=lambda earlier, item, running: earlier == "first" and "running" in running,
    )
    assert started == ["running", "second", "third", "first"]


@pytest.mark.parametrize("reuse", [False, True])
def test_work_that_cannot_be_sent_costs_no_other(reuse: bool, capfd: pytest.CaptureFixture[str]) -> None:
    from processes import run_each

    answers: dict[str, Any] = {}
    work = {"cannot": (abs, lambda: 1), "can": (abs, -1)}
    assert run_each(list(work), work.__getitem__, answers.__setitem__, reuse=lambda _: reuse).failed == ["cannot"]
    assert answers == {"can": 1}
    assert "pickle" in capfd.readouterr().err


def test_an_answer_that_cannot_be_kept_costs_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    from processes import run_each

    kept: list[int] = []

    def keep(item: int, answer: int) -> None:
        if item == 1:
            raise OSError("the disk is full")
        kept.append(answer)

    assert run_each([1, 2], lambda item: (abs, item), keep, reuse=lambda _: True).failed == [1]
    assert kept == [2]
    assert "the disk is full" in capsys.readouterr().err


def test_a_process_that_takes_too_long_is_ended() -> None:
    from processes import run_each

    begin = time.time()
    assert run_each([600.0], lambda item: (time.sleep, item), pytest.fail, limit_s=0.5).failed == [600.0]
    assert time.time() - begin < 300


def test_what_fails_is_tried_once_more_before_later_work(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from processes import Undone, run_each

    answers: dict[str, Any] = {}
    work = {"first": (fails_at_first, tmp_path / "tried"), "wrong": (math.sqrt, -1.0), "later": (abs, -1)}
    assert run_each(list(work), work.__getitem__, answers.__setitem__) == Undone(failed=["wrong"])
    assert list(answers.items()) == [("first", "done"), ("later", 1)]
    said = capfd.readouterr()
    assert "first has failed: it is tried once more" in said.out
    assert said.err.count("ValueError") == 2


def test_what_the_user_has_to_mend_is_not_tried_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from processes import Undone, run_each

    file = tmp_path / "tried"
    assert run_each([file], lambda item: (wants_a_package, item), pytest.fail) == Undone(failed=[file])
    assert file.read_text() == "asked\n"
    assert "install it" in capfd.readouterr().err


def test_what_has_failed_and_finds_no_time_to_be_tried_again_has_failed(capfd: pytest.CaptureFixture[str]) -> None:
    from processes import Undone, run_each

    started: list[float] = []

    def work(item: float) -> Any:
        started.append(item)
        return math.sqrt, item

    undone = run_each([-1.0], work, pytest.fail, fits=lambda item, running: not started)
    assert undone == Undone(failed=[-1.0])
    assert started == [-1.0]


def test_what_is_stuck_is_ended_and_tried_once_more(capsys: pytest.CaptureFixture[str]) -> None:
    from processes import Undone, run_each

    answers: dict[str, Any] = {}
    seconds = {"stuck": [600.0, 0.0], "slow": [2.0]}
    undone = run_each(
        list(seconds),
        lambda item: (time.sleep, seconds[item].pop(0)),
        answers.__setitem__,
        together=2,
        stuck=lambda item: item == "stuck" and len(seconds[item]) == 1,
    )
    assert undone == Undone()
    assert answers == {"stuck": None, "slow": None}
    assert "stuck is stopped: it stands still\nstuck has failed" in capsys.readouterr().out


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(by: int, tmp_path: Path) -> None:
    file = tmp_path / "number"
    driver = multiprocessing.get_context("spawn").Process(target=drives, args=(file,))
    driver.start()
    assert comes_true(lambda: file.exists() and file.read_text())
    os.kill(driver.pid, by)
    driver.join(30)
    assert driver.exitcode == -by
    assert comes_true(lambda: not is_there(int(file.read_text())))


def test_nothing_starts_after_the_deadline() -> None:
    from processes import Undone, run_each

    undone = run_each([1.0], lambda item: (math.sqrt, item), pytest.fail, until=time.time() - 1)
    assert undone == Undone(late=[1.0])
