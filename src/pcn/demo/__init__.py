"""The paper's four steps on scikit-learn's digits, beside the parent and a narrower network of the same size."""

from pcn.demo.compare import compare, epochs_in_all
from pcn.demo.recipe import Recipe
from pcn.demo.results import Comparison

__all__ = ["Comparison", "Recipe", "compare", "epochs_in_all"]
