"""Real processes, started by torchrun with gloo, switch as one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from distributed.launch import check_all, torchrun

SOME = [2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.mark.parametrize("processes", SOME)
def test_statistics_are_those_of_one_process(processes: int) -> None:
    check_all("statistics_worker.py", processes)


@pytest.mark.parametrize("processes", SOME)
def test_all_processes_switch_alike(processes: int) -> None:
    check_all("switch_worker.py", processes)


@pytest.mark.parametrize("processes", SOME)
def test_the_wrapper_follows(processes: int) -> None:
    check_all("ddp_worker.py", processes)


@pytest.mark.parametrize("processes", SOME)
def test_sharded_models_are_refused_and_the_docs_way_around_works(processes: int) -> None:
    check_all("sharded_worker.py", processes)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("script", ["switch_worker.py", "ddp_worker.py"])
def test_two_processes_on_a_gpu(script: str) -> None:
    check_all(script, 2, device="cuda")


@pytest.mark.parametrize("processes", SOME)
@pytest.mark.parametrize("dies", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_when_a_process_dies_the_job_fails_fast_and_the_next_one_resumes(
    processes: int, dies: str, tmp_path: Path
) -> None:
    failed = torchrun("dying_worker.py", processes, str(tmp_path), dies, timeout_s=100)  # they would wait for 600 s
    assert failed.returncode != 0
    assert "SIGKILL" in failed.stdout
    assert (tmp_path / "disturbed.pt").exists()
    assert not list(tmp_path.glob("disturbed?"))
    done = torchrun("dying_worker.py", processes, str(tmp_path), "never")
    assert done.returncode == 0, done.stdout
    for rank in range(processes):
        ended, expected = (torch.load(tmp_path / f"{name}{rank}") for name in ("disturbed", "undisturbed"))
        # Beyond two processes, DistributedDataParallel adds gradients up in another order when it has just been made.
        exactly = {"rtol": 0, "atol": 0} if processes == 2 else {"rtol": 1e-9, "atol": 1e-9}
        torch.testing.assert_close(ended["model"], expected["model"], **exactly)
        torch.testing.assert_close(ended["optimizer"]["state"], expected["optimizer"]["state"], **exactly)
