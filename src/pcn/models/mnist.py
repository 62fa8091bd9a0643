"""The network of the paper's Experiment 1: one hidden layer of any width, on MNIST."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from pcn.models.initialise import glorot_uniform_


class MNISTNetwork(nn.Module):
    """784 -> width -> classes, with sigmoid after both layers.

    It returns the *logarithm* of its sigmoid outputs (N, classes): ``F.cross_entropy`` of that is the categorical
    cross-entropy of the outputs scaled to sum to one, which is the loss that the paper's code trains with.
    """

    def __init__(self, width: int = 450, classes: int = 10) -> None:
        super().__init__()
        self.hidden = nn.Linear(28 * 28, width)
        self.output = nn.Linear(width, classes)
        glorot_uniform_(self)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.hidden(images.flatten(1)).sigmoid()
        return F.logsigmoid(self.output(hidden))


def mnist_network(width: int = 450, classes: int = 10) -> MNISTNetwork:
    """Build Experiment 1's network; the paper's peak is at 450 hidden nodes.

    >>> mnist_network(width=50).output
    Linear(in_features=50, out_features=10, bias=True)
    """
    return MNISTNetwork(width, classes)
