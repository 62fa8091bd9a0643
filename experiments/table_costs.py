"""Time and energy as tables, with what the paper says about them."""

from __future__ import annotations

from grouping import Record, Table

STATEMENTS = (  # what, of which network, against which, in which field, what the paper says
    ("energy per epoch, against WideResNet-20", "wide_resnet20-pcn1", "wide_resnet20", "epoch_energy_j", "-16%"),
    ("energy per epoch, against ResNet-110", "wide_resnet20-pcn1", "resnet110", "epoch_energy_j", "-28%"),
    ("time per epoch, against ResNet-110", "wide_resnet20-pcn1", "resnet110", "epoch_seconds", "49% faster"),
    ("time per epoch, against WideResNet-20", "wide_resnet20-pcn1", "wide_resnet20", "epoch_seconds", ""),
    ("energy per epoch, against half the width", "wide_resnet20-pcn1", "wide_resnet20-half", "epoch_energy_j", ""),
    ("time per epoch, against half the width", "wide_resnet20-pcn1", "wide_resnet20-half", "epoch_seconds", ""),
)


def costs(records: list[Record]) -> Table:
    """A row for each network: an epoch alone on the GPU, and what the switch costs."""
    head = ["network", "epoch (s)", "energy (J)", "above idle (J)", "switch (s)", "set-up (s)", "set-up again (s)"]
    rows = []
    for record in sorted(records, key=lambda record: -record["trainable_params"]):
        seconds, energy_j, idle_w = record["epoch_seconds"], record["epoch_energy_j"], record["idle_w"]
        above_j = None if energy_j is None or idle_w is None else energy_j - idle_w * seconds
        switched = record["switch_seconds"] is not None
        again = record["setup_again_seconds"] if switched else None
        cells = (seconds, energy_j, above_j, record["switch_seconds"], record["setup_seconds"], again)
        rows.append([record["network"], *map(rounded, cells)])
    watts = [f"{record['idle_w']:.0f}" for record in records if record["idle_w"] is not None]
    if watts:
        rows.append([f"idle GPU: {min(watts, key=float)} to {max(watts, key=float)} W", *[""] * (len(head) - 1)])
    return head, rows


def ratios(records: list[Record]) -> Table:
    """The paper's statements about time and energy, and the same of our runs."""
    by_name = {record["network"]: record for record in records}
    rows = []
    for what, mine, theirs, field, paper in STATEMENTS:
        if mine in by_name and theirs in by_name and by_name[mine][field] and by_name[theirs][field]:
            ours = f"{100 * (by_name[mine][field] / by_name[theirs][field] - 1):+.0f}%"
            rows.append([what, paper, ours])
    parent, small = by_name.get("wide_resnet20"), by_name.get("wide_resnet20-pcn1")
    if parent and small:
        epochs = small["switch_seconds"] / parent["epoch_seconds"]
        again = (small["switch_seconds"] + small["setup_again_seconds"]) / parent["epoch_seconds"]
        rows.append(["the switch, in epochs of WideResNet-20", "0.18 (3 s of 17 s)", f"{epochs:.1f}"])
        rows.append(["and setting the step up again", "", f"{again:.1f}"])
    return ["PCN1 of WideResNet-20", "paper", "here"], rows


def rounded(value: float | None) -> str:
    return "" if value is None else f"{value:.{2 if value < 100 else 0}f}"
