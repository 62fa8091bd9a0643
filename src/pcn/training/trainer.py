"""The training loop: epochs, the switch, checkpoints. ``pcn train`` and the experiments are shells around it."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from pcn.costs.count import count
from pcn.errors import ConfigError
from pcn.plans.plan import Plan
from pcn.switching import Switch
from pcn.training.data import Again, Batch, Data
from pcn.training.fitting import check_data_fits
from pcn.training.fusing import check_kernels
from pcn.training.keeping import Keeper
from pcn.training.looks import check_operations
from pcn.training.losses import Losses, check_finite
from pcn.training.meter import StepMemory, Stopwatch, plus
from pcn.training.offers import fading, offer_after_epoch, offer_after_step, offer_at_start
from pcn.training.optimizers import learning_rate, make_optimizer, set_learning_rate_
from pcn.training.preparing import choose_forms_, lay_out_, step_for, switch_for
from pcn.training.progress import RunProgress
from pcn.training.records import Record, epoch_record, result_record, switch_record, validation_accuracy
from pcn.training.requests import build_model
from pcn.training.run_folder import RunFolder
from pcn.training.settings import Settings
from pcn.training.state import put_back_
from pcn.training.step import Step
from pcn.training.world import World


class Trainer:
    """One run: it starts afresh, or where its last checkpoint left it.

    ``compiled`` and ``fused`` make its steps faster on a GPU. ``begun`` is called when everything has been checked,
    ``tell`` with every record that goes into the metrics, ``stepped`` after every step.
    """

    def __init__(
        self,
        settings: Settings,
        data: Data,
        folder: RunFolder | None = None,
        *,
        world: World | None = None,
        compiled: bool = False,
        fused: bool = False,
        begun: Callable[[], None] = lambda: None,
        tell: Callable[[Record], None] = lambda record: None,
        stepped: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings, self.data, self.folder = settings, data, folder
        self.world = world or World(torch.device("cpu"))
        self.device = self.world.device
        self.begun, self.tell, self.stepped = begun, tell, stepped
        self.compiled, self.fused = compiled, fused
        if fused:
            check_kernels(self.device)
        self.graphed = self.device.type == "cuda" and self.world.size == 1
        self.steps_per_epoch = data.steps(settings.batch)
        if self.steps_per_epoch == 0:
            raise ConfigError(f"a batch of {settings.batch} is larger than the training set: give a smaller one")
        self.world.share.of(settings.batch)  # raises where it does not split, before anything is written
        self.progress = RunProgress()
        self.best: dict[str, Tensor] | None = None
        torch.manual_seed(settings.seed)
        random.seed(settings.seed)
        self.channels_last = True
        self.model = build_model(settings).to(self.device)
        lay_out_(self)
        self.optimizer = make_optimizer(self.model, settings, graphed=self.graphed)
        self.wrapped = self.world.wrap(self.model)
        torch.manual_seed(settings.seed + 7919 * self.world.rank)  # dropout differs between processes
        self.switch = self.make_switch()
        self.step: Step | None = None
        self._cost_before = count(self.model)
        self.memory = StepMemory(self.device, self.model, self.optimizer)
        self.watch = Stopwatch(self.device)
        self.losses, self.keeper = Losses(self), Keeper(self)

    def make_switch(self) -> Switch | None:
        """The switch of this run, None where there is to be none; for others than the settings', override this."""
        return switch_for(self)

    def run(self, deadline: float = math.inf) -> Record | None:
        """Train to the last epoch and return the result, or None when the deadline (as of time.time()) comes first."""
        check_data_fits(self)
        resumed = self.keeper.resume()
        if not self.ended:
            check_operations(self)
        if self.folder is not None:
            self.folder.begin()
        self.begun()
        if resumed is not None:
            self.tell(resumed)
        if self.ended and (earlier := self._earlier_result()) is not None:
            return earlier
        if self.progress.step == 0:
            offer_at_start(self)
        while not self.ended:
            started = time.time()
            self._train_epoch()
            self._end_epoch()
            if self._too_late(started, deadline) and not self.ended:
                self.keeper.write()
                return None
        return self._finish()

    def _earlier_result(self) -> Record | None:
        """What the run has ended with before; only the first process has the folder, and all must know."""
        return self.world.ranks.from_one(lambda: None if self.folder is None else self.folder.result())

    def _too_late(self, started: float, deadline: float) -> bool:
        """Whether another epoch may end after the deadline; one process's clock decides for all."""

        def late() -> bool:
            now = time.time()
            return now + 1.5 * (now - started) > deadline

        return self.world.ranks.from_one(late)

    @property
    def ended(self) -> bool:
        progress, patience = self.progress, self.settings.patience
        if progress.epoch >= self.settings.epochs:
            return True
        if patience is None or (self.switch is not None and fading(self.switch)):
            return False  # a network that fades gives way to another, whose best is looked for anew
        return progress.epoch - progress.best_epoch >= patience

    def rate_after(self, steps: int) -> float:
        """The learning rate of the step that follows so many, of the network that there is now."""
        rate = learning_rate(self.settings, steps / self.steps_per_epoch)
        return rate * self.settings.switch_rate if self.switch is not None and self.switch.plan is not None else rate

    def _train_epoch(self) -> None:
        """Do what is left of an epoch."""
        progress = self.progress
        start = progress.step - progress.epoch * self.steps_per_epoch
        self.memory.epoch_begins(self.model, self.optimizer)
        for number, (inputs, labels) in enumerate(self._batches(start)):
            if number == 0:
                self.memory.data_ready()
            step = self.step or self.set_up(inputs, labels)
            set_learning_rate_(self.optimizer, self.rate_after(progress.step))
            step(inputs, labels)
            progress.step += 1
            self.stepped()
            if self.switch is not None:
                offer_after_step(self, self.switch)
            if progress.step % self.steps_per_epoch and self.keeper.due:
                self.keeper.write()
        self.count_time()

    def _batches(self, start: int) -> Iterator[Batch]:
        return self.data.epoch(
            self.progress.epoch + 1,
            batch=self.settings.batch,
            seed=self.settings.seed,
            start=start,
            share=self.world.share,
        )

    def _end_epoch(self) -> None:
        progress = self.progress
        progress.epoch += 1
        peak = self.memory.most()
        accuracy, loss = validation_accuracy(self), self.losses.mean()
        check_finite(loss, progress.epoch)
        self.log("epoch", **epoch_record(self, accuracy=accuracy, loss=loss, peak_memory_bytes=peak))
        wanted = self.settings.keep_best or self.settings.patience is not None
        first = progress.best_accuracy < 0  # of all, or behind the switch: nothing is known yet
        if wanted and (first or accuracy > progress.best_accuracy + self.settings.min_delta):
            self._keep_best(accuracy)
        offer_after_epoch(self, accuracy)
        if self.keeper.due or self.ended:
            self.keeper.write()

    def branch_(self, state: dict[str, Any]) -> None:
        """Go on from the state of another run with the same first epochs, as it was before a switch."""
        check_data_fits(self)
        put_back_(self, state)
        self.progress.branched = True
        accuracy = validation_accuracy(self)
        self.log("branched", validation_accuracy=accuracy)
        offer_after_epoch(self, accuracy)

    def set_up(self, inputs: Tensor, labels: Tensor) -> Step:
        """Choose how layers run and make the training step, which may take a minute."""
        self.count_time()
        choose_forms_(self, inputs)
        self.step = self.make_step(inputs, labels)
        self.memory.new_step(recorded=self.step.graph is not None)
        seconds, _ = self.watch.lap()
        self.progress.setup_seconds = plus(self.progress.setup_seconds, seconds)
        if self.compiled or self.fused:
            self.log("ready", seconds=seconds)
        return self.step

    def make_step(self, inputs: Tensor, labels: Tensor) -> Step:
        """Compile and capture, where a processor is busy and the device hardly; override it to let others have that."""
        return step_for(self, inputs, labels)

    def switched(self, plan: Plan) -> None:
        """Go on with the network that the switch has made; everything set up for the old one goes."""
        progress = self.progress
        progress.count_switch(self.watch.lap()[0])
        progress.switch_epoch = progress.epoch
        self.losses.settle()
        self.step = None
        if not self.settings.carry_state:
            self.optimizer = make_optimizer(self.model, self.settings, graphed=self.graphed)
        if self.folder is not None:
            self.folder.write_plan(plan)
        progress.best_accuracy, progress.best_epoch, self.best = -1.0, progress.epoch, None  # of another network
        self.log("switch", **switch_record(self, self._cost_before))
        self.watch.lap()

    def _finish(self) -> Record:
        """Read the test set, this once."""
        if self.best is not None:
            self.model.load_state_dict(self.best)
        result = result_record(self)
        if self.folder is not None:
            self.folder.write_model(self.model)
            self.folder.write_result(result)
        return result

    def calibration(self) -> Iterable[Tensor]:
        samples, share = self.settings.calibration_samples, self.world.share
        return Again(lambda: self.data.calibration(samples, share))

    def _keep_best(self, accuracy: float) -> None:
        self.progress.best_accuracy, self.progress.best_epoch = accuracy, self.progress.epoch
        self.best = {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def count_time(self) -> None:
        self.progress.count(*self.watch.lap())

    def log(self, event: str, **values: Any) -> None:
        record = {"event": event, "epoch": self.progress.epoch, "step": self.progress.step, **values}
        if self.folder is not None:
            self.folder.log(record)
        self.tell(record)
