"""Tables and figures come from the results, stand where the document marks their place, and replace earlier ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ARMS = {"as in the paper": (77.0, 78.0), "random basis": (75.0, 77.0), "from scratch": (74.0,)}


def write(results: Path, name: str, records: list[dict[str, object]]) -> None:
    found = {"hardware": {"gpu": None}, "versions": {"torch": "2"}, "records": records}
    (results / f"{name}.json").write_text(json.dumps(found))


def questions() -> list[dict[str, object]]:
    return [
        {
            "network": f"conv4-pcn, {arm}",
            "seed": seed,
            "epochs": 20,
            "test_accuracy": accuracy,
            "validation_after_switch": None if arm == "from scratch" else 60.0,
        }
        for arm, accuracies in ARMS.items()
        for seed, accuracy in enumerate(accuracies)
    ]


def robustness() -> list[dict[str, object]]:
    name = "conv4, variances above 0.0001 and 0.05, switch after {}{}"
    points = [(1, ""), (2, ""), (3, ", without fc1")]
    return [
        {"network": name.format(epoch, rest), "seed": seed, "switch_epoch": epoch, "test_accuracy": 76.0 + seed}
        for epoch, rest in points
        for seed in (0, 1)
    ]


def test_differences_are_of_runs_with_the_same_seed(tmp_path: Path) -> None:
    import table

    write(tmp_path, "open_questions", questions())
    shown = table.table("open_questions", tmp_path)
    assert "| conv4-pcn | as in the paper | 2 | 60.00 | 77.50 |  |" in shown
    assert "| conv4-pcn | random basis | 2 | 60.00 | 76.00 | -1.50 ± 0.50 |" in shown
    assert "| conv4-pcn | from scratch | 1 |  | 74.00 | -3.00 |" in shown
    assert shown.index("as in the paper") < shown.index("from scratch")


def test_runs_of_several_lengths_are_apart(tmp_path: Path) -> None:
    import table

    longer = [{**record, "epochs": 60, "test_accuracy": record["test_accuracy"] + 5} for record in questions()[:3]]
    write(tmp_path, "open_questions", [*longer, *questions()])
    shown = table.table("open_questions", tmp_path)
    assert "| conv4-pcn, 20 epochs | as in the paper | 2 | 60.00 | 77.50 |  |" in shown
    assert "| conv4-pcn, 20 epochs | random basis | 2 | 60.00 | 76.00 | -1.50 ± 0.50 |" in shown
    assert "| conv4-pcn, 60 epochs | as in the paper | 2 | 60.00 | 82.50 |  |" in shown
    assert "| conv4-pcn, 60 epochs | random basis | 1 | 60.00 | 80.00 | -2.00 |" in shown
    assert shown.index("from scratch") < shown.index("60 epochs")
    sizes = {"trainable_params": 1, "total_params": 1}
    runs = [
        {"network": network, "seed": 0, "epochs": epochs, "test_accuracy": 90.0 + epochs / 100, **sizes}
        for network, epochs in (("resnet20", 60), ("resnet20", 182), ("resnet110", 182))
    ]
    write(tmp_path, "cifar10_resnets", runs)
    shown = table.table("cifar10_resnets", tmp_path)
    assert "| resnet20, 60 epochs | 1 | 1 | 1 | 90.60 |" in shown
    assert "| resnet20, 182 epochs | 1 | 1 | 1 | 91.82 |" in shown
    assert "| resnet110 | 1 | 1 | 1 | 91.82 |" in shown


def test_robustness_and_ablation_are_tables_of_their_own(tmp_path: Path) -> None:
    import table

    write(tmp_path, "conv4_robustness", robustness())
    shown = table.table("conv4_robustness", tmp_path)
    assert "| (0.0001, 0.05) | 76.50 (2 runs, 76.00 to 77.00) | 76.50 (2 runs, 76.00 to 77.00) |" in shown
    assert "all but fc1" in shown
    write(tmp_path, "conv4_robustness", robustness()[:4])
    assert "all but" not in table.table("conv4_robustness", tmp_path)


def test_the_document_is_brought_up_to_date_and_words_stay(tmp_path: Path) -> None:
    document = pytest.importorskip("document", reason="needs matplotlib", exc_type=ImportError)
    write(tmp_path, "conv4_robustness", robustness())
    empty = "Before.\n\n<!-- table conv4_robustness -->\n\n<!-- figure one: What it shows -->\n\nAfter.\n"
    once = document.with_tables(empty, tmp_path)
    assert once.startswith("Before.\n\n<!-- table conv4_robustness -->\n\n`experiments/conv4_robustness.py`, CPU")
    assert once.endswith("|\n\n<!-- figure one: What it shows -->\n\nAfter.\n")
    assert document.with_tables(once, tmp_path) == once
    write(tmp_path, "conv4_robustness", robustness()[:2])
    assert document.with_tables(once, tmp_path) == document.with_tables(empty, tmp_path)
    (tmp_path / "conv4_robustness.json").unlink()
    assert "`experiments/conv4_robustness.py`: **not run yet**.\n\n<!-- figure" in document.with_tables(once, tmp_path)
    assert document.with_figures(once, tmp_path) == once
    (tmp_path / "one.svg").touch()
    drawn = document.with_figures(once, tmp_path)
    assert "\n\n![What it shows](figures/one.svg)\n\nAfter." in drawn
    assert document.with_figures(drawn, tmp_path) == drawn


def test_every_figure_of_conv4_is_drawn(tmp_path: Path) -> None:
    plots = pytest.importorskip("plots", reason="needs matplotlib", exc_type=ImportError)
    write(tmp_path, "conv4_robustness", robustness())
    write(tmp_path, "open_questions", questions())
    assert set(plots.draw(tmp_path, tmp_path)) == {"conv4_robustness", "conv4_ablation", "open_questions_conv4"}
