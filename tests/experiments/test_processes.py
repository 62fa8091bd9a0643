"""Runs in processes of their own: none costs another anything, whatever happens to it."""

import math
import os
import time
from typing import Any

import pytest


def killed(signal: int) -> None:
    os.kill(os.getpid(), signal)


def own_number(_: Any) -> int:
    return os.getpid()


def test_each_run_has_a_process_of_its_own_and_waits_for_others(capfd: pytest.CaptureFixture[str]) -> None:
    from processes import run_each

    answers: dict[str, Any] = {}
    work = {"root": (math.sqrt, 4.0), "wrong": (math.sqrt, -1.0), "later": (abs, -1)}

    def ready(item: str, running: Any) -> bool:
        return item != "later" or "root" in answers

    failed = run_each(["later", "root", "wrong"], work.__getitem__, answers.__setitem__, together=2, ready=ready)
    assert answers == {"root": 2.0, "later": 1}
    assert failed == ["wrong"]
    assert "ValueError" in capfd.readouterr().err


@pytest.mark.parametrize("reuse", [False, True])
def test_one_that_dies_costs_no_other(reuse: bool, capfd: pytest.CaptureFixture[str]) -> None:
    from processes import run_each

    answers: dict[str, Any] = {}
    work = {"dies": (killed, 9), "lives": (time.sleep, 0.5), "comes later": (abs, -1)}
    assert run_each(list(work), work.__getitem__, answers.__setitem__, together=2, reuse=reuse) == ["dies"]
    assert answers == {"lives": None, "comes later": 1}
    assert "dies ended with -9" in capfd.readouterr().out


@pytest.mark.parametrize("reuse", [False, True])
def test_a_process_is_used_again_where_that_is_asked_for(reuse: bool) -> None:
    from processes import run_each

    answers: dict[int, int] = {}
    assert run_each([1, 2, 3], lambda item: (own_number, item), answers.__setitem__, reuse=reuse) == []
    assert len(set(answers.values())) == (1 if reuse else 3)


@pytest.mark.parametrize("reuse", [False, True])
def test_work_that_cannot_be_sent_costs_no_other(reuse: bool, capfd: pytest.CaptureFixture[str]) -> None:
    from processes import run_each

    answers: dict[str, Any] = {}
    work = {"cannot": (abs, lambda: 1), "can": (abs, -1)}
    assert run_each(list(work), work.__getitem__, answers.__setitem__, reuse=reuse) == ["cannot"]
    assert answers == {"can": 1}
    assert "pickle" in capfd.readouterr().err


def test_an_answer_that_cannot_be_kept_costs_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    from processes import run_each

    kept: list[int] = []

    def keep(item: int, answer: int) -> None:
        if item == 1:
            raise OSError("the disk is full")
        kept.append(answer)

    assert run_each([1, 2], lambda item: (abs, item), keep, reuse=True) == [1]
    assert kept == [2]
    assert "the disk is full" in capsys.readouterr().err


def test_a_process_that_takes_too_long_is_ended() -> None:
    from processes import run_each

    begin = time.time()
    assert run_each([600.0], lambda item: (time.sleep, item), pytest.fail, limit_s=0.5) == [600.0]
    assert time.time() - begin < 300


def test_nothing_starts_after_the_deadline() -> None:
    from processes import run_each

    assert run_each([1.0], lambda item: (math.sqrt, item), pytest.fail, until=time.time() - 1) == []
