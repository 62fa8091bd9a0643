"""TensorFlow's initialisations, which the paper's networks start from."""

from __future__ import annotations

from torch import nn


def glorot_uniform_(model: nn.Module) -> None:
    """Initialise every linear layer and convolution as Keras does by default: Glorot uniform, zero bias."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def resnet_(model: nn.Module) -> None:
    """Initialise as the paper's ResNets: convolutions normal with variance 2 / fan_out, linear layers as in Keras."""
    glorot_uniform_(model)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
