"""``pcn train`` under torchrun: several processes train one network; when one dies the job ends, and goes on later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ARGUMENTS = (
    "-m pcn train --model dying_network:build --data digits --optimizer adam --learning-rate 0.003 --batch 64"
    " --epochs 3 --switch-at 2 --rank 0.25 --device cpu --checkpoint-every 0.5"
)


def torchrun(
    processes: int, folder: Path, dies: str = "-1 0 none", flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.run(
        [*launch, *ARGUMENTS.split(), *flags, "--out", str(folder)],
        cwd=Path(__file__).parent,
        env={**os.environ, "DIES": dies, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_job_whose_process_dies_ends_at_once_and_resumes_exactly(tmp_path: Path, processes: int) -> None:
    whole = torchrun(processes, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    assert f"{processes} processes" in whole.stdout
    assert "Grad strides" not in whole.stderr

    started = time.monotonic()
    broken = torchrun(processes, tmp_path / "broken", f"1 33 {tmp_path / 'died'}")
    assert broken.returncode != 0
    assert time.monotonic() - started < 60  # it fails, it does not hang
    assert not (tmp_path / "broken" / "result.json").exists()
    again = torchrun(processes, tmp_path / "broken", f"1 33 {tmp_path / 'died'}")
    assert again.returncode == 0, again.stderr
    assert "goes on after epoch 2" in again.stdout
    expected, found = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "broken"))
    for name, value in expected.items():
        # Of more than two processes DistributedDataParallel adds gradients up in another order in its first step.
        torch.testing.assert_close(found[name], value, rtol=0, atol=0 if processes == 2 else 1e-3)


@pytest.mark.parametrize(
    ("before", "after"), [("1 process", 2), pytest.param("2 processes", 1, marks=pytest.mark.slow)]
)
def test_another_number_of_processes_goes_on_and_says_that_it_is_another_run(
    tmp_path: Path, before: str, after: int
) -> None:
    dies = f"0 33 {tmp_path / 'died'}"
    assert torchrun(int(before[0]), tmp_path / "run", dies).returncode != 0
    again = torchrun(after, tmp_path / "run", dies)
    assert again.returncode == 0, again.stderr
    assert "goes on after epoch 2" in again.stdout
    assert again.stderr.count(f"this run was trained in {before} and goes on in {after}: it will not end as one") == 1


def test_a_batch_that_does_not_split_is_refused_before_the_folder_is_the_runs(tmp_path: Path) -> None:
    job = torchrun(2, tmp_path / "run", flags=("--batch", "63"))
    assert job.returncode != 0
    assert "a batch of 63 does not split over 2 processes: give a multiple of 2" in job.stderr
    assert not (tmp_path / "run" / "settings.json").exists()


def test_a_finished_job_that_is_started_again_says_what_it_ended_with(tmp_path: Path) -> None:
    for _ in range(2):  # the second does not wait for anybody
        job = torchrun(2, tmp_path)
        assert job.returncode == 0, job.stderr
    assert "goes on after epoch 3" in job.stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert f"test accuracy {result['test_accuracy']:.2f}%" in job.stdout
    assert (tmp_path / "metrics.jsonl").read_text().count('"event": "epoch"') == 3


@pytest.mark.parametrize(("left_s", "ends"), [(3600, (2, True)), (0, (1, False))])
def test_one_clock_decides_for_all_whether_a_deadline_comes_first(left_s: int, ends: tuple[int, bool]) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*launch, "deadline_worker.py", str(left_s)],
        cwd=Path(__file__).parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == str([ends, ends])
