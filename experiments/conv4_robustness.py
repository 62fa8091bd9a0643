"""The paper's robustness figure and its ablation: Conv4 switched at other epochs, thresholds, or in all layers but one.

    python experiments/conv4_robustness.py --data DIR --together 6
    python experiments/conv4_robustness.py --data DIR --only ablation --seeds 0 1

Thresholds are (variance for convolutions, for dense layers); the first convolution is never transformed. Robustness:
four pairs, the switch after epochs 1 to 5. Ablation: the same pairs, the switch after epoch 3, one layer left as it is.
For a seed, all runs that switch after the same epoch branch off one parent: until then they are the same run. Test
accuracy is that of the epoch with the best validation accuracy. Results: experiments/results/conv4_robustness.json
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from cifar10_conv4 import settings as conv4_settings
from pcn.training import Settings, Trainer
from records import RESULTS, Record, Records
from runs import Job, add_run_arguments, run_jobs

PAIRS = ((1e-4, 0.05), (1e-4, 0.1), (1e-3, 0.1), (1e-3, 0.2))
SWITCHES, ABLATION_SWITCH, EPOCHS = (1, 2, 3, 4, 5), 3, 20
CONVOLUTIONS, DENSE = ("conv2", "conv3", "conv4"), ("fc1", "fc2", "output")
Point = tuple[float, float, int, str | None]  # the two thresholds, the switch's epoch, the layer left as it is

ROBUSTNESS: list[Point] = [(*pair, epoch, None) for pair in PAIRS for epoch in SWITCHES]
ABLATION: list[Point] = [(*pair, ABLATION_SWITCH, layer) for pair in PAIRS for layer in (*CONVOLUTIONS, *DENSE)]
PARTS = {"robustness": ROBUSTNESS, "ablation": ABLATION}


def settings(point: Point, seed: int, data: Path) -> Settings:
    conv, dense, switch, left_out = point
    thresholds = {**dict.fromkeys(CONVOLUTIONS, conv), **dict.fromkeys(DENSE, dense)}
    return dataclasses.replace(
        conv4_settings("conv4", seed, EPOCHS, data, carry_state=False),
        rank=f"variance > {conv:g}",
        layers={name: {"rank": f"variance > {tau:g}"} for name, tau in thresholds.items() if name != left_out},
        exclude=("conv1",) if left_out is None else ("conv1", left_out),
        switch_at=str(switch),
    )


def ranks(trainer: Trainer) -> Record:
    assert trainer.switch is not None
    assert trainer.switch.plan is not None
    return {"ranks": {layer.name: layer.rank for layer in trainer.switch.plan.transformed}}


def jobs(options: argparse.Namespace, records: Records) -> Iterator[Job]:
    for seed in options.seeds:
        for part in options.only:
            for point in PARTS[part]:
                if not records.has(network=name(point), seed=seed):
                    switch = point[2]
                    yield Job(
                        name(point),
                        settings(point, seed, options.data),
                        trunk=options.work / f"conv4-seed{seed}-epoch{switch}.pt",
                        trunk_epoch=switch,
                        at_the_end=ranks,
                    )


def name(point: Point) -> str:
    conv, dense, switch, left_out = point
    return f"conv4, variances above {conv:g} and {dense:g}, switch after {switch}" + (
        "" if left_out is None else f", without {left_out}"
    )


def main() -> None:
    options = arguments().parse_args()
    records = Records(options.results or RESULTS / "conv4_robustness.json")
    run_jobs(list(jobs(options, records)), records, options, reuse=True)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10's binary version")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=tuple(PARTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], metavar="SEED")
    parser.add_argument("--work", type=Path, default=Path("runs/conv4_robustness"), help="folder for parents' states")
    add_run_arguments(parser)
    return parser


if __name__ == "__main__":
    main()
