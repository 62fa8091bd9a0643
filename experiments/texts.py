"""Small language models on the bytes of a text: batches of pieces, the loop that trains, the loss on other bytes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

STEPS, SWITCH, BATCH, LENGTH = 900, 150, 16, 64
BATCHES_SEEN = 60  # of what was held out
TRAINED, HELD_OUT = 3_800_000, 200_000  # bytes

Switch = Callable[[Sequence[Optimizer], torch.Generator], None]
MakeOptimizers = Callable[[nn.Module, float], Sequence[Optimizer]]


def read_bytes(path: Path, least: int) -> Tensor:
    """The first bytes of a file, at least as many as asked for."""
    with path.open("rb") as file:
        found = file.read(least)
    if len(found) < least:
        raise SystemExit(f"{path} has {len(found):,} bytes: give a text of at least {least:,}")
    return torch.frombuffer(bytearray(found), dtype=torch.uint8)


def adamw(model: nn.Module, rate: float) -> list[Optimizer]:
    return [AdamW(model.parameters(), lr=rate)]


def train(
    model: nn.Module,
    rate: float,
    data: Tensor,
    drawn: torch.Generator,
    switch: Switch | None = None,
    make_optimizers: MakeOptimizers = adamw,
) -> None:
    """Train with one cycle of the rate; ``switch`` is called before one step, to make the model smaller."""
    optimizers = make_optimizers(model, rate)
    cycle = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=rate, total_steps=STEPS, pct_start=0.05)
    schedules = [cycle(each) for each in optimizers]
    for step in range(STEPS):
        if step == SWITCH and switch is not None:
            switch(optimizers, drawn)
        read = pieces(data, drawn)
        model.zero_grad()
        model(input_ids=read, labels=read).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in (*optimizers, *schedules):
            each.step()


def pieces(data: Tensor, drawn: torch.Generator) -> Tensor:
    """A batch of places of the text, one after another in each row."""
    starts = torch.randint(0, len(data) - LENGTH, (BATCH, 1), generator=drawn)
    return data[starts + torch.arange(LENGTH)].long()


@torch.no_grad()
def loss_on(model: nn.Module, data: Tensor) -> float:
    """The mean loss, in nats per byte, on the same pieces for every model."""
    model.eval()
    drawn = torch.Generator().manual_seed(0)
    read = [pieces(data, drawn) for _ in range(BATCHES_SEEN)]
    return statistics.fmean(float(model(input_ids=each, labels=each).loss) for each in read)
