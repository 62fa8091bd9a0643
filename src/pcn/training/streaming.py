"""Images too many for memory: threads read them ahead while training goes on, and the device augments whole batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from pcn.training.colour import coloured, draw_colour_maps
from pcn.training.data import ALONE, SEEDS, Batch, Share, epoch_seed
from pcn.training.images import Scale
from pcn.training.pictures import Crop, Pictures, Reader

PLAIN = 256  # images at a time where they are not augmented
AHEAD = 3  # batches that are read before they are asked for
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Recipe:
    """A batch to be made: which pictures, and how each is changed."""

    pictures: Pictures
    chosen: list[int]
    crop: Crop | None = None
    key: str = ""  # decides the crops
    flipped: Tensor | None = None  # (N,)
    colours: Tensor | None = None  # (N, 3, 4)


@dataclass(frozen=True)
class ImageStream:
    """Pictures split into three; every batch of an epoch follows from the seed, the epoch and its own number alone.

    ``workers`` threads decode and crop. With ``crop`` training images are random parts, half of them mirrored, and with
    ``recolour`` in random colours; those two happen on the device.
    """

    train: Pictures
    held_out: Pictures
    tested: Pictures
    reader: Reader
    scale: Scale
    crop: Crop | None = None
    recolour: bool = False
    workers: int = 0
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32

    def to(self, device: torch.device, dtype: torch.dtype) -> ImageStream:
        return replace(self, scale=self.scale.to(device), device=device, dtype=dtype)

    @property
    def outputs_needed(self) -> int:
        """How many outputs a classifier of these pictures must have."""
        return 1 + max(max(part.labels, default=-1) for part in (self.train, self.held_out, self.tested))

    def steps(self, batch: int) -> int:
        return len(self.train) // batch

    def epoch(self, number: int, *, batch: int, seed: int, start: int = 0, share: Share = ALONE) -> Iterator[Batch]:
        own, own_seed = share.of(batch), epoch_seed(seed, number)
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(own_seed))

        def recipe(index: int) -> Recipe:
            chosen = order[index * batch : (index + 1) * batch][own].tolist()
            if self.crop is None:
                return Recipe(self.train, chosen)
            generator = torch.Generator().manual_seed((own_seed * 1_000_003 + index) % SEEDS)
            # Drawn for the whole batch, so that the number of processes changes no image.
            flipped = torch.rand(batch, generator=generator) < 0.5
            colours = draw_colour_maps(batch, generator)[own] if self.recolour else None
            return Recipe(self.train, chosen, self.crop, str(own_seed), flipped[own], colours)

        return self._batches(map(recipe, range(start, self.steps(batch))))

    def validation(self, share: Share = ALONE) -> Iterator[Batch]:
        return self._batches(share.among(_in_order(self.held_out)))

    def test(self, share: Share = ALONE) -> Iterator[Batch]:
        return self._batches(share.among(_in_order(self.tested)))

    def calibration(self, count: int, share: Share = ALONE) -> Iterator[Tensor]:
        chosen = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(0))[:count]
        recipes = (Recipe(self.train, part.tolist()) for part in chosen.split(PLAIN))
        # Statistics are worked out in fp32, whatever the network trains in.
        return (inputs for inputs, _ in replace(self, dtype=torch.float32)._batches(share.among(recipes)))

    def _batches(self, recipes: Iterable[Recipe]) -> Iterator[Batch]:
        return one_ahead(self._read(recipes), self._finish, self.device)

    def _read(self, recipes: Iterable[Recipe]) -> Iterator[tuple[Recipe, Tensor]]:
        """Read the pictures of batch after batch, some batches ahead where there are workers."""
        if not self.workers:
            for recipe in recipes:
                yield recipe, torch.stack([self._picture(recipe, index) for index in recipe.chosen])
            return
        pool, waiting = ThreadPoolExecutor(self.workers), deque[tuple[Recipe, list[Future[Tensor]]]]()
        try:
            for recipe in recipes:
                waiting.append((recipe, [pool.submit(self._picture, recipe, index) for index in recipe.chosen]))
                if len(waiting) > AHEAD:
                    yield _collected(*waiting.popleft())
            while waiting:
                yield _collected(*waiting.popleft())
        finally:  # also when nobody asks for the rest
            pool.shutdown(wait=True, cancel_futures=True)

    def _picture(self, recipe: Recipe, index: int) -> Tensor:
        random = None if recipe.crop is None else Random(f"{recipe.key}:{index}")
        return self.reader(recipe.pictures.paths[index], recipe.crop, random)

    def _finish(self, recipe: Recipe, pixels: Tensor) -> Batch:
        """Bring a batch to the device and do the rest there."""
        labels = torch.tensor([recipe.pictures.labels[index] for index in recipe.chosen])
        pixels = self._moved(pixels)
        if recipe.flipped is not None:
            pixels = torch.where(self._moved(recipe.flipped)[:, None, None, None], pixels.flip(2), pixels)
        if recipe.colours is not None:
            pixels = coloured(pixels, self._moved(recipe.colours))
        return self.scale(pixels, self.dtype), self._moved(labels)

    def _moved(self, tensor: Tensor) -> Tensor:
        on_gpu = self.device.type == "cuda"
        return (tensor.pin_memory() if on_gpu else tensor).to(self.device, non_blocking=on_gpu)


def one_ahead(
    read: Iterator[tuple[Recipe, Tensor]], finish: Callable[[Recipe, Tensor], Batch], device: torch.device
) -> Iterator[Batch]:
    """Finish batches; on a GPU each on a stream of its own while the batch before it is trained on."""
    if device.type != "cuda":
        for recipe, pixels in read:
            yield finish(recipe, pixels)
        return
    side = torch.cuda.Stream(device)
    coming: deque[tuple[Batch, torch.cuda.Event]] = deque()
    for recipe, pixels in read:
        with torch.cuda.stream(side):
            batch = finish(recipe, pixels)
        coming.append((batch, side.record_event()))
        if len(coming) > 1:
            yield _arrived(*coming.popleft())
    while coming:
        yield _arrived(*coming.popleft())


def _arrived(batch: Batch, event: torch.cuda.Event) -> Batch:
    here = torch.cuda.current_stream()
    here.wait_event(event)
    for tensor in batch:
        tensor.record_stream(here)
    return batch


def _collected(recipe: Recipe, pictures: list[Future[Tensor]]) -> tuple[Recipe, Tensor]:
    return recipe, torch.stack([picture.result() for picture in pictures])


def _in_order(pictures: Pictures) -> Iterator[Recipe]:
    return (Recipe(pictures, part.tolist()) for part in torch.arange(len(pictures)).split(PLAIN))
