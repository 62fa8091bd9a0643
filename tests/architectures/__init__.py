"""Real architectures with small random configurations: those of Hugging Face transformers, and some in plain torch."""

from architectures.architecture import Architecture, Batch, images, tokens
from architectures.convolutional import CONVOLUTIONAL
from architectures.networks import DenseNet, LanguageLSTM, ResNetLike, SelfAttention, ShuffleNet, TokenEncoder, UNet
from architectures.several import SEVERAL
from architectures.text import DECODERS, ENCODERS
from architectures.vision import VISION

PLAIN_TORCH = [
    Architecture("resnet_like", ResNetLike, images(name="images")),
    Architecture("densenet", DenseNet, images(name="images")),
    Architecture("shufflenet", ShuffleNet, images(name="images")),
    Architecture("unet", UNet, images(name="images")),
    Architecture("lstm", LanguageLSTM, tokens("tokens")),
    Architecture("attention", SelfAttention, tokens("tokens")),
    Architecture("transformer_encoder", TokenEncoder, tokens("tokens"), prunes=False),
]
ARCHITECTURES = [*CONVOLUTIONAL, *VISION, *ENCODERS, *DECODERS, *SEVERAL, *PLAIN_TORCH]
BY_NAME = {architecture.name: architecture for architecture in ARCHITECTURES}

__all__ = ["ARCHITECTURES", "BY_NAME", "Architecture", "Batch"]
