"""Data sets are read in the forms that everyone has; what is missing or damaged is said."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import struct
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pcn.errors import ConfigError, DataError
from pcn.training import ImageData, ImageStream, SampleData, Settings, load_data
from pcn.training.data import Share
from pcn.training.images import Images, Scale, cropped_and_flipped
from pcn.training.sources.folder import DEVIATION, MEAN

CPU = torch.device("cpu")
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def load(data: str, folder: Path | None = None, **changes: object) -> ImageData:
    settings = Settings(data=data, data_dir=None if folder is None else str(folder), **changes)
    return load_data(settings, CPU, torch.float32)  # type: ignore[return-value]


def cifar10(folder: Path, form: str) -> None:
    """CIFAR-10 of four random images a file, in one of its forms."""
    torch.manual_seed(0)
    target = folder / ("cifar-10-batches-py" if form == "python" else "cifar-10-batches-bin")
    target.mkdir(parents=True)
    for name in BATCHES:
        labels, pixels = torch.randint(10, (4, 1), dtype=torch.uint8), torch.randint(256, (4, 3072), dtype=torch.uint8)
        if form == "python":
            batch = {b"data": pixels.numpy(), b"labels": labels.flatten().tolist()}
            (target / name).write_bytes(pickle.dumps(batch, protocol=2))
        else:
            (target / f"{name}.bin").write_bytes(bytes(torch.cat([labels, pixels], 1).flatten().tolist()))
    if form == "archive":
        with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
            archive.add(target, target.name)
        for file in target.iterdir():
            file.unlink()
        target.rmdir()


@pytest.mark.parametrize("form", ["binary", "archive", "python"])
def test_cifar10_reads_the_same_in_every_form(tmp_path: Path, form: str) -> None:
    cifar10(tmp_path / "first", "binary")
    cifar10(tmp_path / "second", form)
    expected, found = load("cifar10", tmp_path / "first"), load("cifar10", tmp_path / "second")
    assert len(found.train) == 18
    assert len(found.held_out) == 2
    for mine, theirs in ((found.train, expected.train), (found.tested, expected.tested)):
        assert torch.equal(mine.pixels, theirs.pixels)
        assert torch.equal(mine.labels, theirs.labels)


def test_missing_data_says_where_to_get_it_and_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not hold CIFAR-10.*get https.*cifar-10-binary.tar.gz and put it"):
        load("cifar10", tmp_path)
    with pytest.raises(DataError, match=r"needs data_dir.*https"):
        load("cifar10")
    with pytest.raises(DataError, match=r"does not hold MNIST.*https"):
        load("mnist", tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'cifar10'"):
        load("cifar")


@pytest.mark.parametrize("how", ["above", "absolute", "linked"])
def test_an_archive_that_reaches_outside_is_refused(tmp_path: Path, how: str) -> None:
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
        if how == "linked":
            link = tarfile.TarInfo("inside")
            link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
            archive.addfile(link)
        names = {"above": "../outside.txt", "absolute": str(tmp_path / "outside.txt"), "linked": "inside/outside.txt"}
        member = tarfile.TarInfo(names[how])
        member.size = 4
        archive.addfile(member, io.BytesIO(b"evil"))
    inner = tmp_path / "data"
    inner.mkdir()
    os.replace(tmp_path / "cifar-10-binary.tar.gz", inner / "cifar-10-binary.tar.gz")
    with pytest.raises(DataError, match="cannot unpack"):
        load("cifar10", inner)
    assert not (tmp_path / "outside.txt").exists()
    assert [path.name for path in inner.iterdir()] == ["cifar-10-binary.tar.gz"]


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    cifar10(tmp_path, "python")

    class Evil:
        def __reduce__(self) -> object:
            return os.mkdir, (str(tmp_path / "evil"),)

    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(DataError, match=r"not one of CIFAR-10's batches: it asks for .*mkdir"):
        load("cifar10", tmp_path)
    assert not (tmp_path / "evil").exists()


def test_a_batch_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    cifar10(tmp_path, "binary")
    file = tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(DataError, match="cut off"):
        load("cifar10", tmp_path)


def mnist(folder: Path, *, zipped: bool) -> None:
    folder.mkdir(parents=True)
    for name, count in (("train", 30), ("t10k", 6)):
        numbers = np.random.default_rng(count)
        images, labels = numbers.integers(256, size=(count, 28, 28)), numbers.integers(10, size=count)
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(">4B", 0, 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
            data = head + values.astype(np.uint8).tobytes()
            file = folder / f"{name}-{kind}-ubyte"
            (file.with_name(file.name + ".gz") if zipped else file).write_bytes(gzip.compress(data) if zipped else data)


@pytest.mark.parametrize("zipped", [False, True])
def test_mnist(tmp_path: Path, zipped: bool) -> None:
    mnist(tmp_path / "MNIST" / "raw", zipped=zipped)
    data = load("mnist", tmp_path)
    assert data.train.pixels.shape == (27, 28, 28, 1)
    assert len(data.held_out) == 3
    assert len(data.tested) == 6
    inputs, labels = next(data.epoch(1, batch=9, seed=0))
    assert inputs.shape == (9, 1, 28, 28)
    assert labels.shape == (9,)


def test_a_damaged_mnist_file_is_named(tmp_path: Path) -> None:
    mnist(tmp_path / "mnist", zipped=True)
    file = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte\.gz is damaged"):
        load("mnist", tmp_path)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    numbers = np.random.default_rng(0)
    for part, count in (("train", 10), ("val", 3)):
        for name in ("cats", "dogs"):
            (root / part / name).mkdir(parents=True)
            for index in range(count):
                shape = (int(numbers.integers(20, 60)), int(numbers.integers(20, 60)), 3)
                image = Image.fromarray(numbers.integers(256, size=shape, dtype=np.uint8))
                image.save(root / part / name / f"{index}.{'png' if index % 2 else 'jpg'}")
    return root


def folder_data(pictures: Path, workers: int = 0, augment: str = "resized-crop-colour") -> ImageStream:
    options = {"size": 16, "workers": workers}
    return load("folder", pictures, data_options=options, augment=augment)  # type: ignore[return-value]


@pytest.mark.parametrize(("name", "least"), [("size", 1), ("workers", 0), ("validation", 1)])
def test_options_of_a_folder_are_whole_numbers(pictures: Path, name: str, least: int) -> None:
    with pytest.raises(ConfigError, match=rf"{name}={least - 1}: give a whole number of at least {least}"):
        load("folder", pictures, data_options={name: least - 1})


def test_a_folder_of_images(pictures: Path) -> None:
    data = folder_data(pictures)
    assert (len(data.train), len(data.held_out), len(data.tested)) == (18, 2, 6)
    inputs, labels = next(data.test())
    assert inputs.shape == (6, 3, 16, 16)
    assert sorted(labels.tolist()) == [0, 0, 0, 1, 1, 1]
    assert sum(len(batch) for batch in data.calibration(5)) == 5


class Noisy:
    """Three numbers a sample, and noise from both generators that augmentations draw from."""

    def __len__(self) -> int:
        return 18

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(index)) + torch.rand(3) + random.random(), index


@pytest.mark.parametrize("kind", ["folder", "samples"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_can_be_taken_up_anywhere(pictures: Path, kind: str, workers: int) -> None:
    def made(workers: int) -> ImageStream | SampleData:
        samples = Noisy()
        return folder_data(pictures, workers) if kind == "folder" else SampleData(*[samples] * 4, workers=workers)

    data = made(workers)
    before = torch.get_rng_state()
    whole = list(data.epoch(2, batch=4, seed=1))
    rest = list(made(0).epoch(2, batch=4, seed=1, start=2))
    other = list(data.epoch(3, batch=4, seed=1))
    if not workers:
        assert torch.equal(torch.get_rng_state(), before)
    assert len(whole) == 4
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(whole[2:], rest, strict=True))
    assert not torch.equal(whole[0][0], other[0][0])


def test_an_epoch_of_a_folder_is_shared_out_and_no_image_depends_on_how_many_share_it(pictures: Path) -> None:
    data = folder_data(pictures)
    whole = list(data.epoch(2, batch=4, seed=1))
    halves = [list(data.epoch(2, batch=4, seed=1, share=Share(index, 2))) for index in range(2)]
    for (inputs, labels), first, second in zip(whole, *halves, strict=True):
        assert torch.equal(torch.cat([first[0], second[0]]), inputs)
        assert torch.equal(torch.cat([first[1], second[1]]), labels)
    shares = [list(data.calibration(600, Share(index, 2))) for index in range(2)]
    assert [sum(map(len, batches)) for batches in shares] == [18, 0]  # whole batches go to one process


def test_nobody_has_to_take_a_whole_epoch(pictures: Path) -> None:
    threads = threading.active_count()
    batches = folder_data(pictures, workers=2).epoch(1, batch=2, seed=0)
    next(batches)
    assert threading.active_count() > threads
    batches.close()
    assert threading.active_count() == threads


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gets_the_same_batches(pictures: Path) -> None:
    data = folder_data(pictures, workers=2)
    on_gpu = data.to(torch.device("cuda"), torch.float32)
    for mine, theirs in zip(on_gpu.epoch(2, batch=4, seed=1), data.epoch(2, batch=4, seed=1), strict=True):
        torch.testing.assert_close(mine[0].cpu(), theirs[0], rtol=1e-3, atol=1e-3)
        assert torch.equal(mine[1].cpu(), theirs[1])


@pytest.mark.parametrize("scale", ["unit", "standardise", "centre"])
def test_a_large_picture_is_scaled_and_cropped_as_asked(tmp_path: Path, scale: str) -> None:
    colours = np.zeros((512, 640, 3), dtype=np.uint8)
    colours[32:480, 96:544] = (200, 100, 50)  # what is left of 256 pixels after a crop of 224
    for part in ("train", "val"):
        (tmp_path / part / "one").mkdir(parents=True)
        for number in (0, 1):
            Image.fromarray(colours).save(tmp_path / part / "one" / f"{number}.jpg", quality=95)
    inputs, _ = next(load("folder", tmp_path, data_options={"size": 32}, scale=scale).test())
    pixels = torch.tensor([200.0, 100.0, 50.0])
    expected = {
        "unit": pixels / 255,
        "standardise": (pixels / 255 - torch.tensor(MEAN)) / torch.tensor(DEVIATION),
        "centre": pixels - 255 * torch.tensor(MEAN),
    }[scale]
    torch.testing.assert_close(
        inputs[0, :, 2:-2, 2:-2], expected[:, None, None].expand(3, 28, 28), rtol=0.05, atol=0.05
    )


def test_images_in_memory_can_be_taken_up_anywhere_and_shared_out() -> None:
    data = load("digits", augment="crop-flip")
    whole = list(data.epoch(2, batch=64, seed=1))
    rest = list(data.epoch(2, batch=64, seed=1, start=9))
    assert all(torch.equal(a, b) for pair in zip(whole[9:], rest, strict=True) for a, b in zip(*pair, strict=True))
    halves = [list(data.epoch(2, batch=64, seed=1, share=Share(index, 2))) for index in range(2)]
    joined = [torch.cat([a[0], b[0]]) for a, b in zip(*halves, strict=True)]
    assert all(torch.equal(a[0], b) for a, b in zip(whole, joined, strict=True))
    with pytest.raises(ConfigError, match="does not split over 3 processes"):
        next(data.epoch(1, batch=64, seed=0, share=Share(0, 3)))


def test_the_largest_seeds_order_an_epoch_too(pictures: Path) -> None:
    images = load_data(Settings(data="digits", seed=2**63 - 1), torch.device("cpu"), torch.float32)
    stream = folder_data(pictures)
    samples = SampleData(*[[(torch.zeros(1), 0)] * 8] * 4)
    for data in (images, stream, samples):
        for seed in (10**9, 2**63 - 1):
            once, again = (next(data.epoch(2**31, batch=2, seed=seed)) for _ in range(2))
            assert all(map(torch.equal, once, again))
    with pytest.raises(ConfigError, match="below 2\\*\\*63"):
        Settings(seed=2**63)


def test_a_broken_image_is_named(pictures: Path, tmp_path: Path) -> None:
    for part in ("train", "val"):
        (tmp_path / part / "cats").mkdir(parents=True)
        (tmp_path / part / "cats" / "too.jpg").write_bytes(b"torn")
        (tmp_path / part / "cats" / "torn.jpg").write_bytes(
            next((pictures / "val" / "cats").glob("*")).read_bytes()[:50]
        )
    with pytest.raises(DataError, match=r"cannot read the image .*(torn|too)\.jpg"):
        next(folder_data(tmp_path).test())
    with pytest.raises(DataError, match="there is no folder"):
        folder_data(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no sub-folders"):
        folder_data(tmp_path / "train" / "cats")


def test_standardised_channels_have_mean_0_and_deviation_1() -> None:
    data = load("digits")
    images = data.scale(data.train.pixels)
    assert images.stride() == (64, 64, 8, 1)
    assert abs(float(images.mean())) < 1e-4
    assert abs(float(images.std(correction=0)) - 1) < 1e-4
    centred = load("digits", scale="centre")
    assert torch.allclose(centred.scale(centred.train.pixels), images * data.scale.deviation, atol=1e-4)
    with pytest.raises(ConfigError, match="is for a folder of images"):
        load("digits", augment="resized-crop")
    unit = load("digits", scale="unit")
    scaled = unit.scale(unit.train.pixels)
    assert float(scaled.min()) == 0
    assert float(scaled.max()) == 1


def test_a_channel_that_is_the_same_everywhere_becomes_0() -> None:
    pixels = torch.randint(256, (100, 8, 8, 3), dtype=torch.uint8)
    pixels[..., 1] = 77
    pixels[..., 2] = 255
    pixels[0, 0, 0, 2] = 254  # nearly so
    scaled = Scale.standardising(Images(pixels, torch.zeros(100)))(pixels)
    assert not scaled[:, 1].any()
    for varied in (scaled[:, 0], scaled[:, 2]):
        assert abs(float(varied.double().std(correction=0)) - 1) < 1e-3


def test_crops_are_parts_of_the_padded_image_or_of_its_mirror_image() -> None:
    pixels = torch.randint(1, 256, (20, 32, 32, 3), dtype=torch.uint8)
    crops = cropped_and_flipped(pixels, torch.Generator().manual_seed(0))
    mirrored = 0
    for image, crop in zip(pixels, crops, strict=True):
        found = {
            flip: any(torch.equal(window, crop.flip(1) if flip else crop) for window in windows(image))
            for flip in (False, True)
        }
        assert any(found.values())
        mirrored += found[True]
    assert 0 < mirrored < len(pixels)


def windows(image: torch.Tensor) -> Iterator[torch.Tensor]:
    padded = torch.zeros(40, 40, 3, dtype=torch.uint8)
    padded[4:36, 4:36] = image
    return (padded[y : y + 32, x : x + 32] for y in range(9) for x in range(9))
