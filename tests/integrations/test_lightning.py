"""Lightning trains on through the switch, and its checkpoints reload on either side of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.multiprocessing.spawn import ProcessRaisedException

import pcn
from distributed.launch import torchrun
from integrations.lightning_run import (
    Module,
    TwoOptimizers,
    check_every_checkpoint_resumes,
    keep_all,
    make_trainer,
    switching,
)
from integrations.training import SAMPLES, SMALL, batches
from pcn.integrations.lightning import SwitchCallback, load_from_checkpoint
from pcn.nn import PCModule

pytestmark = [  # all of them Lightning's own
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


@pytest.mark.parametrize("when", ["validation", "epoch"])
def test_a_resumed_run_ends_as_one_never_stopped(when: str, tmp_path: Path) -> None:
    check_every_checkpoint_resumes(tmp_path, {"save_on_train_epoch_end": when == "epoch"})


def test_a_run_in_half_precision_resumes_as_well(tmp_path: Path) -> None:
    check_every_checkpoint_resumes(tmp_path, {}, precision="bf16-true")


def test_a_module_with_two_optimizers_resumes_and_trains_on(tmp_path: Path) -> None:
    check_every_checkpoint_resumes(tmp_path, {}, make=TwoOptimizers)
    module, before = TwoOptimizers(), {}

    class Watch(L.Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            before.update({name: p.detach().clone() for name, p in pl_module.named_parameters()})

    make_trainer(switching(), Watch()).fit(module)
    assert isinstance(module.net.fc2, PCModule)
    assert [name for name, p in module.named_parameters() if torch.equal(p, before[name])] == []


def test_a_checkpoint_of_an_epochs_last_step_does_not_miss_the_switch(tmp_path: Path) -> None:
    steps = SAMPLES // 24
    check_every_checkpoint_resumes(tmp_path, {"every_n_train_steps": steps}, at=1, max_steps=2 * steps, max_epochs=-1)


def test_two_processes_end_alike_and_resume(tmp_path: Path) -> None:
    done = torchrun(str(Path(__file__).parent / "lightning_run.py"), 2, str(tmp_path))
    assert done.returncode == 0, done.stdout


def test_the_schedule_goes_on_where_it_was() -> None:
    switched, whole = Module(), Module()
    make_trainer(switching()).fit(switched)
    make_trainer().fit(whole)
    assert switched.rates == whole.rates
    assert len(set(whole.rates)) > 10


def test_a_run_that_was_begun_whole_is_not_resumed_on_a_loaded_module(tmp_path: Path) -> None:
    make_trainer(switching(), keep_all(tmp_path)).fit(Module())
    *_, behind, _ = sorted(tmp_path.iterdir())
    trainer = make_trainer(switching(), keep_all(tmp_path))
    with pytest.raises(pcn.PlanError, match=r"build it anew, without pcn\.load"):
        trainer.fit(load_from_checkpoint(Module, behind), ckpt_path=behind)
    trainer.fit(Module(), ckpt_path=behind)


def test_a_checkpoint_is_loaded_by_itself(tmp_path: Path) -> None:
    module = Module(smoothing=0.1)
    trainer = make_trainer(switching(), keep_all(tmp_path))
    trainer.fit(module)
    before, *_, after = sorted(tmp_path.iterdir())
    loaded = load_from_checkpoint(Module, after)
    assert type(loaded) is Module
    assert loaded.hparams.smoothing == 0.1
    inputs = torch.randn(5, 12)
    torch.testing.assert_close(loaded.eval()(inputs), module.eval()(inputs), rtol=0, atol=0)
    assert not isinstance(load_from_checkpoint(Module, before).net.fc2, PCModule)
    (tested,) = make_trainer(switching(), keep_all(tmp_path)).test(Module(), ckpt_path=after, verbose=False)
    assert tested["accuracy"] == pytest.approx(trainer.callback_metrics["accuracy"].item())
    with pytest.raises(pcn.PlanError, match="before the switch"):
        trainer.test(module, ckpt_path=before, verbose=False)


def test_the_accuracy_decides_where_a_rule_asks_for_it(tmp_path: Path) -> None:
    def fit(path: Path | None = None) -> SwitchCallback:
        callback = switching(at=pcn.AccuracySlows(share=1.0), metric="accuracy")
        make_trainer(callback, keep_all(tmp_path), max_epochs=8).fit(Module(batch=12), ckpt_path=path)
        return callback

    assert fit().plan is not None
    seen = torch.load(max(tmp_path.iterdir()), weights_only=True)["callbacks"]["pcn.SwitchCallback"]["switch"]
    assert 3 <= len(seen["accuracies"]) <= 8
    first = min(tmp_path.iterdir())
    fit(first)
    resumed = torch.load(max(tmp_path.iterdir()), weights_only=True)["callbacks"]["pcn.SwitchCallback"]["switch"]
    assert resumed["accuracies"] == seen["accuracies"]


def test_only_validations_of_training_must_log_the_metric() -> None:
    class Silent(Module):
        def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
            pass

    trainer = make_trainer(callback := switching(metric="accuracy"))
    trainer.fit(Module())
    assert callback.plan is not None
    trainer.validate(Silent(), verbose=False)
    with pytest.raises(pcn.ConfigError, match=r"'accuracy' is not among what validation logged \(nothing\)"):
        make_trainer(switching(metric="accuracy")).fit(Silent())


def test_steps_are_the_optimizers(tmp_path: Path) -> None:
    sizes = []

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *rest: Any) -> None:
            sizes.append(isinstance(pl_module.net.fc2, PCModule))

    steps = SAMPLES // 12
    make_trainer(switching(at=pcn.AfterStep(3)), Watch(), max_epochs=1, accumulate_grad_batches=2).fit(Module(batch=12))
    assert sizes == [False] * 5 + [True] * (steps - 5)


def test_mixed_precision_and_dropped_outputs_work_as_well() -> None:
    module = Module()
    config = pcn.PCNConfig(rank=8, keep_outputs=0.5)
    make_trainer(switching(config=config), precision="bf16-mixed").fit(module)
    assert module.net.fc1.out_features == 16
    assert isinstance(module.net.fc2, PCModule)


@pytest.mark.parametrize("precision", ["bf16-true", "16-true", "64-true"])
def test_calibration_batches_are_cast_as_the_loaders_are(precision: Any) -> None:
    class WithSGD(Module):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)  # as Adam's eps is zero in float16

    for calibration in (list(batches()), batches, iter(batches())):
        module, options = WithSGD(), {"at": 1, "recalibrate": True, "example": next(iter(batches()))}
        callback = SwitchCallback(calibration, pcn.Budget(flops=0.8), **options)
        make_trainer(callback, max_epochs=2, precision=precision).fit(module)
        assert isinstance(module.net.fc2, PCModule)


@pytest.mark.parametrize("at", [2, pcn.AfterStep(5)])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_is_looked_for_anew_after_the_switch(at: Any, mode: Any, tmp_path: Path) -> None:
    class Worsens(Module):
        """Whose whole network is better, by what is logged, than it is ever again."""

        def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
            small = isinstance(self.net.fc2, PCModule)
            self.log("score", (1.0 if mode == "min" else -1.0) * (10 - self.current_epoch if small else 0))

        test_step = Module.validation_step

    best, stop = ModelCheckpoint(tmp_path, monitor="score", mode=mode), EarlyStopping("score", mode=mode, patience=2)
    module = Worsens()
    trainer = make_trainer(switching(at=at), best, stop, max_epochs=5)
    trainer.fit(module)
    assert trainer.current_epoch == 5
    assert "epoch=4" in best.best_model_path
    assert abs(float(best.best_model_score)) == 6
    (tested,) = trainer.test(module, ckpt_path="best", verbose=False)
    assert tested["accuracy"] > 0
    assert any("epoch=0" in path.name for path in tmp_path.iterdir())  # the whole module's best stays


def test_a_switch_that_never_comes_is_mentioned(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the switch, at=2, has not come.*the next one starts"):
        make_trainer(switching(at=2), keep_all(tmp_path), max_epochs=2).fit(TwoOptimizers())  # has no schedule to end
    with pytest.warns(UserWarning, match=r"still fading in: the model is still whole"):
        make_trainer(switching(at=1, fade=100), max_epochs=2).fit(Module())
    for epochs in (3, 4):  # resumed before the switch, and after it
        trainer = make_trainer(switching(at=2), keep_all(tmp_path), max_epochs=epochs)
        trainer.fit(TwoOptimizers(), ckpt_path=max(tmp_path.iterdir()))
    make_trainer(switching(at=2), fast_dev_run=True).fit(Module())


def test_nothing_is_said_of_a_run_that_was_stopped_in_the_middle() -> None:
    class Fails(L.Callback):
        def on_train_batch_end(self, *given: Any) -> None:
            raise RuntimeError("the middle")

    with pytest.raises(RuntimeError, match="the middle"):
        make_trainer(switching(), Fails()).fit(Module())
    callback = switching()
    make_trainer(callback).validate(Module(), verbose=False)
    assert callback.plan is None


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pcn.ConfigError, match="metric="):
        switching(at=pcn.AccuracySlows())
    with pytest.raises(pcn.ConfigError, match=r"before any training: call pcn\.compress_"):
        switching(at=0)
    with pytest.raises(pcn.ConfigError, match=r"'parms'.*did you mean 'params'"):
        SwitchCallback([], SMALL, parms=0.5)
    with pytest.raises(pcn.ConfigError, match=r"'acuracy'.*did you mean 'accuracy'"):
        make_trainer(switching(at=pcn.AccuracySlows(), metric="acuracy")).fit(Module())
    with pytest.raises(pcn.ConfigError, match="save_weights_only"):
        make_trainer(switching(), keep_all(tmp_path, save_weights_only=True)).fit(Module())
    with pytest.raises(pcn.ConfigError, match="WeightAveraging"):
        make_trainer(switching(), L.pytorch.callbacks.EMAWeightAveraging()).fit(Module())


@pytest.mark.parametrize("kept", [False, True])
def test_statistics_are_there_where_they_were_asked_for(kept: bool) -> None:
    make_trainer(callback := switching(keep_statistics=kept)).fit(Module())
    assert callback.plan is not None
    assert (callback.statistics is not None) is kept


@pytest.mark.filterwarnings("ignore:.*os.fork\\(\\) was called:DeprecationWarning")
def test_processes_from_which_only_weights_come_back_are_refused() -> None:
    trainer = make_trainer(switching(), strategy="ddp_fork", devices=1)
    with pytest.raises(ProcessRaisedException, match=r"trains in processes of its own .* use strategy='ddp'"):
        trainer.fit(Module())
