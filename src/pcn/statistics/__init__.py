"""What the inputs of a model's layers look like: mean, covariance and spectrum, from one pass over some batches."""

from pcn.statistics.analysis import analyze
from pcn.statistics.spectrum import Spectrum
from pcn.statistics.statistics import Statistics

__all__ = ["Spectrum", "Statistics", "analyze"]
