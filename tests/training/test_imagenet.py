"""The ImageNet recipes say what the paper says, and run to the end under torchrun on a small folder of images."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.optim import SGD

from pcn import models
from pcn.layers import transformable_layers
from pcn.training import Settings
from pcn.training.colour import coloured, draw_colour_maps, saturated, turned
from pcn.training.optimizers import learning_rate, make_optimizer
from pcn.training.pictures import random_rectangle, random_square
from pcn.training.requests import build_model, pcn_config
from pcn.training.settings import read_toml

HERE = Path(__file__).parent
RECIPES = sorted((HERE.parents[1] / "experiments" / "imagenet").glob("*.toml"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 training images of three classes, four of which are held out, and six to test on."""
    root, numbers = tmp_path_factory.mktemp("imagenet"), np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 2)):
        for name in ("cats", "dogs", "mice"):
            (root / part / name).mkdir(parents=True)
            for index in range(count):
                shape = (int(numbers.integers(40, 90)), int(numbers.integers(40, 90)), 3)
                image = Image.fromarray(numbers.integers(256, size=shape, dtype=np.uint8))
                image.save(root / part / name / f"{index}.jpg")
    return root


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_the_papers(recipe: Path) -> None:
    settings = Settings.from_mapping(read_toml(recipe))
    vgg = recipe.stem.startswith("vgg")
    rates = [learning_rate(settings, epoch - 0.5) for epoch in (1, 30, 31, 50, 51, 60, 61, 70)]
    if vgg:
        assert rates == [0.01, 0.01, 0.01, 0.01, 1e-3, 1e-3, 1e-4, 1e-4]
        assert (settings.epochs, settings.label_smoothing, settings.decoupled_decay) == (70, 0, True)
    else:
        assert rates == [0.1, 0.1, 0.01, 0.01, 0.01, 0.01, 1e-3, 1e-3]
        assert (settings.epochs, settings.label_smoothing, settings.weight_decay) == (90, 0.1, 1e-4)
    with torch.device("meta"):
        model = build_model(settings)
    assert sum(p.numel() for p in model.parameters()) == {
        "vgg19": 143_667_240, "resnet50": 25_557_032, "wide_resnet50": 98_004_072
    }[recipe.stem.removesuffix("-pcn")]  # fmt: skip
    if recipe.stem.endswith("-pcn"):
        assert settings.switch_at == ("15" if vgg else "16")
        assert settings.calibration_samples * settings.analysis_fraction == 50_176
        config = pcn_config(settings)
        config.check_names(name for name, _, _ in transformable_layers(model))
        assert config == models.config(recipe.stem)


@pytest.mark.parametrize(
    "names", [["vgg19-pcn", "wide_resnet50-pcn"], pytest.param(["resnet50"], marks=pytest.mark.slow)]
)
def test_recipes_run_to_the_end_under_torchrun_and_resume_exactly(
    pictures: Path, tmp_path: Path, names: list[str]
) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    recipes = [path for path in RECIPES if path.stem in names]
    done = subprocess.run(
        [*launch, str(HERE / "imagenet_worker.py"), str(pictures), str(tmp_path), *map(str, recipes)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in names:
        assert done.stdout.count(f"passed {name} on rank") == 2


def test_decoupled_decay_shrinks_weights_and_leaves_the_momentum_alone() -> None:
    torch.manual_seed(0)
    settings = Settings(learning_rate=0.1, weight_decay=0.05, decoupled_decay=True)
    model = torch.nn.Linear(3, 2)
    plain = SGD([torch.nn.Parameter(p.detach().clone()) for p in model.parameters()], lr=0.1, momentum=0.9)
    optimizer = make_optimizer(model, settings)
    for _ in range(3):
        gradients = [torch.randn_like(p) for p in model.parameters()]
        for mine, theirs, gradient in zip(model.parameters(), plain.param_groups[0]["params"], gradients, strict=True):
            mine.grad, theirs.grad = gradient.clone(), gradient.clone()
            theirs.data *= 1 - 0.1 * 0.05
        optimizer.step()
        plain.step()
        for mine, theirs in zip(model.parameters(), plain.param_groups[0]["params"], strict=True):
            torch.testing.assert_close(mine, theirs)
            torch.testing.assert_close(optimizer.state[mine]["momentum_buffer"], plain.state[theirs]["momentum_buffer"])


def test_colours_change_as_their_names_say() -> None:
    pixels = torch.randint(256, (4, 5, 6, 3), dtype=torch.uint8)
    unchanged = torch.cat([torch.eye(3), torch.zeros(3, 1)], 1).repeat(4, 1, 1)
    torch.testing.assert_close(coloured(pixels, unchanged), pixels.float())
    grey = torch.tensor([100.0, 100.0, 100.0])
    coefficients = torch.tensor([0.6, 1.0, 1.4])
    for maps in (saturated(coefficients), turned(coefficients)):
        torch.testing.assert_close(maps @ grey, grey.expand(3, 3), rtol=2e-3, atol=0.2)  # grey stays grey
        torch.testing.assert_close(maps[1], torch.eye(3), rtol=0, atol=1e-5)
    drawn = draw_colour_maps(20_000, torch.Generator().manual_seed(0))
    brightness = (drawn[:, :, :3] @ grey).mean(1) / 100
    assert 0.59 < float(brightness.min()) < 0.61
    assert 1.39 < float(brightness.max()) < 1.41
    directions = torch.linalg.eigh(torch.cov(drawn[:, :, 3].T))
    torch.testing.assert_close(directions.eigenvalues.sqrt(), torch.tensor([0.1148, 0.4794, 5.546]), rtol=0.03, atol=0)


def test_crops_lie_inside_and_have_the_sizes_asked_for() -> None:
    numbers = random.Random(0)
    shares, ratios = [], []
    for _ in range(2000):
        left, top, right, bottom = random_rectangle(500, 375, numbers)
        assert left >= 0
        assert top >= 0
        assert right <= 500 + 1e-9
        assert bottom <= 375 + 1e-9
        shares.append((right - left) * (bottom - top) / (500 * 375))
        ratios.append((right - left) / (bottom - top))
        left, top, right, bottom = random_square(500, 375, numbers)
        assert right - left == pytest.approx(375 * 224 / 256)
        assert bottom - top == pytest.approx(375 * 224 / 256)
    assert 0.08 <= min(shares) < 0.1
    assert 0.9 < max(shares) <= 1
    assert 0.75 <= min(ratios) < 0.77
    assert 1.31 < max(ratios) <= 4 / 3 + 1e-9
