"""A loop with Accelerate goes on through the switch, and its saved states load on either side of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

import pcn
from distributed.launch import torchrun
from integrations.accelerate_run import Run, check_every_state_resumes
from integrations.training import EPOCHS, batches, data, network, optimizer_of, two_optimizers_of
from pcn.distributed import state_hash
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


def test_a_run_that_was_begun_whole_is_not_resumed_on_a_loaded_model(tmp_path: Path) -> None:
    whole = Run()
    whole.train(tmp_path)
    whole.accelerator.save_model(whole.model, tmp_path / "final")
    again = Run(model=pcn.load(network(), tmp_path / "final"))
    with pytest.raises(pcn.PlanError, match=r"build it anew, without pcn\.load"):
        again.accelerator.load_state(str(tmp_path / "epoch3"))


def test_a_saved_model_is_one_file_and_its_plan_goes_with_it(tmp_path: Path) -> None:
    """Options that split weights, or pickle them, would leave what nobody can load."""
    run, inputs = Run(), data()[:][0]
    run.train(tmp_path)
    for n, options in enumerate(({"max_shard_size": "1KB"}, {"safe_serialization": False})):
        run.accelerator.save_model(run.model, tmp_path / str(n), **options)
        loaded = pcn.load(network(), tmp_path / str(n))
        torch.testing.assert_close(loaded.eval()(inputs), run.model.eval()(inputs), rtol=0, atol=0)
    whole = Run()
    whole.accelerator.save_model(whole.model, tmp_path / "0")
    assert not (tmp_path / "0" / "plan.json").exists()


class Pair:
    """Two networks of one shape in one accelerator, each with a switch, as of a generator and what judges it."""

    def __init__(self, order: tuple[int, ...] = (0, 1)) -> None:
        self.accelerator = Accelerator(cpu=True)
        models = [network(), network()]
        prepared = self.accelerator.prepare(*models, *map(optimizer_of, models))
        self.models, optimizers = prepared[:2], prepared[2:]
        given = [pcn.Switch(m, o, pcn.PCNConfig(rank=8), at=1) for m, o in zip(self.models, optimizers, strict=True)]
        prepared_switches = {n: prepare_switch(self.accelerator, given[n]) for n in order}
        self.switches = [prepared_switches[n] for n in sorted(order)]


def test_two_switches_of_one_accelerator_keep_their_own_states(tmp_path: Path) -> None:
    pair = Pair()
    pair.switches[1].after_epoch(1, batches(), accuracy=0.9)
    pair.accelerator.save_state(str(tmp_path / "both"))
    again = Pair()
    again.accelerator.load_state(str(tmp_path / "both"))
    assert [switch.plan is None for switch in again.switches] == [True, False]
    assert [switch.state_dict()["accuracies"] for switch in again.switches] == [[], [0.9]]
    assert [state_hash(model) for model in again.models] == [state_hash(model) for model in pair.models]
    with pytest.raises(pcn.FileError, match=r"another model's switch.*in the order"):
        Pair(order=(1, 0)).accelerator.load_state(str(tmp_path / "both"))
    with pytest.raises(pcn.ConfigError, match="has a switch already"):
        prepare_switch(pair.accelerator, pcn.Switch(pair.models[1], None))


def test_an_accelerator_that_let_go_of_one_training_saves_the_next_alone(tmp_path: Path) -> None:
    run = Run()
    run.accelerator.free_memory()
    model = run.accelerator.prepare(network())
    prepare_switch(run.accelerator, pcn.Switch(model, None))
    run.accelerator.save_state(str(tmp_path))
    assert sorted(path.name for path in tmp_path.glob("pcn_switch*")) == [FILE]


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
