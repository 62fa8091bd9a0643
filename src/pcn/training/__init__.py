"""Training by settings: data, one loop, checkpoints, and a folder for each run."""

from pcn.training.data import Data, ImageData
from pcn.training.datasets import SampleData
from pcn.training.images import Images, Scale
from pcn.training.run_folder import RunFolder
from pcn.training.settings import Settings
from pcn.training.sources import load_data
from pcn.training.streaming import ImageStream
from pcn.training.trainer import Trainer
from pcn.training.world import World, world

__all__ = [
    "Data",
    "ImageData",
    "ImageStream",
    "Images",
    "RunFolder",
    "SampleData",
    "Scale",
    "Settings",
    "Trainer",
    "World",
    "load_data",
    "world",
]
