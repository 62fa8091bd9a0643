"""What every test of a benchmark starts from."""

from pathlib import Path

import pytest

from pcn.training import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _scripts_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("experiments", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))


@pytest.fixture
def tiny_parent(_scripts_can_be_imported: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """One more parent to compare on: ResNet-20 on tiny images, switched after the first epoch."""
    from peers.parents import PARENTS, Parent, Point

    def recipe(seed: int, epochs: int, data: Path) -> Settings:
        return Settings(
            model="pcn.models:wide_resnet20",
            model_options={"width": 16},
            data="benchmarks.generated_images:small_data",
            epochs=epochs,
            batch=16,
            seed=seed,
        )

    point = Point(0.05, 1e-4)
    tiny = Parent(recipe, lambda epochs: 1, {120_000: {"rank": "0.5"}}, point, (point,), grid_epochs=2)
    monkeypatch.setitem(PARENTS, "tiny", tiny)
    return "tiny"
