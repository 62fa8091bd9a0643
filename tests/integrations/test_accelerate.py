"""A loop with Accelerate goes on through the switch, and its saved states load on either side of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pcn
from distributed.launch import torchrun
from integrations.accelerate_run import Run, check_every_state_resumes
from integrations.training import EPOCHS, data, network, optimizer_of, two_optimizers_of
from pcn.integrations.accelerate import FILE, prepare_switch


def test_a_resumed_run_ends_as_one_never_stopped(tmp_path: Path) -> None:
    check_every_state_resumes(tmp_path)


def test_two_optimizers_resume_as_one_does(tmp_path: Path) -> None:
    check_every_state_resumes(tmp_path, make=two_optimizers_of, strict=True)


def test_two_processes_end_alike_and_resume(tmp_path: Path) -> None:
    done = torchrun(str(Path(__file__).parent / "accelerate_run.py"), 2, str(tmp_path))
    assert done.returncode == 0, done.stdout


def test_accelerates_wrapper_does_not_hide_the_optimizer(tmp_path: Path) -> None:
    Run(strict=True).train(tmp_path)  # which refuses an optimizer whose state would be lost


def test_a_saved_model_is_loaded_by_itself(tmp_path: Path) -> None:
    run = Run()
    run.accelerator.save_model(run.model, str(tmp_path / "whole"))
    run.train(tmp_path)
    run.accelerator.save_model(run.model, tmp_path / "switched")
    assert not (tmp_path / "whole" / "plan.json").exists()
    loaded, inputs = pcn.load(network(), tmp_path / "switched"), data()[:][0]
    torch.testing.assert_close(loaded.eval()(inputs), run.model.eval()(inputs), rtol=0, atol=0)


def test_a_switch_that_never_comes_is_mentioned(tmp_path: Path) -> None:
    late = Run(at=EPOCHS + 1)
    late.train(tmp_path)
    with pytest.warns(UserWarning, match="the switch, at=5, has not come: the model is still whole"):
        late.accelerator.end_training()
    switched = Run()
    switched.train(tmp_path)
    switched.accelerator.end_training()


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    run = Run()
    run.train(tmp_path)
    with pytest.raises(pcn.PlanError, match="before the switch"):
        run.accelerator.load_state(str(tmp_path / "epoch1"))
    (tmp_path / "epoch1" / FILE).unlink()
    with pytest.raises(pcn.FileError, match="saved without the switch"):
        Run().accelerator.load_state(str(tmp_path / "epoch1"))
    model = network()
    with pytest.raises(pcn.ConfigError, match="prepare returned"):
        prepare_switch(run.accelerator, pcn.Switch(torch.nn.Sequential(model), optimizer_of(model)))
