"""Vision transformers of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

from architectures.architecture import Architecture, hugging_face, images, noise

TRANSFORMER: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
PATCHES: dict[str, Any] = {"image_size": 16, "patch_size": 8}
WINDOWS: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 4,
    "window_size": 4,
    "embed_dim": 8,
    "depths": [2, 1],
    "num_heads": [2, 4],
}
PYRAMID: dict[str, Any] = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [2, 1],
    "hidden_sizes": [8, 16],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
}

DINO = hugging_face(
    "Dinov2ForImageClassification",
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    mlp_ratio=2,
    use_swiglu_ffn=True,
    **PATCHES,
)
LEVIT = hugging_face(
    "LevitForImageClassification",
    image_size=32,
    hidden_sizes=[16, 24, 32],
    num_attention_heads=[2, 3, 4],
    depths=[1, 1, 1],
    key_dim=[8, 8, 8],
)
CVT = hugging_face("CvtForImageClassification", embed_dim=[8, 12, 16], num_heads=[1, 2, 2], depth=[1, 2, 3])
FOCALNET = hugging_face(
    "FocalNetForImageClassification",
    image_size=32,
    embed_dim=8,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    focal_levels=[2, 2],
    focal_windows=[3, 3],
)
HIERA = hugging_face(
    "HieraForImageClassification",
    image_size=[32, 32],
    embed_dim=8,
    depths=[1, 1],
    num_heads=[1, 2],
    masked_unit_size=[4, 4],
    num_query_pool=1,
)
SEGFORMER = hugging_face("SegformerForSemanticSegmentation", decoder_hidden_size=12, **PYRAMID)
VIDEO = hugging_face("VideoMAEForVideoClassification", num_frames=4, **TRANSFORMER, **PATCHES)

VISION = [
    Architecture("vit", hugging_face("ViTForImageClassification", **TRANSFORMER, **PATCHES), images(16)),
    Architecture("deit", hugging_face("DeiTForImageClassificationWithTeacher", **TRANSFORMER, **PATCHES), images(16)),
    Architecture("beit", hugging_face("BeitForImageClassification", **TRANSFORMER, **PATCHES), images(16)),
    Architecture("dinov2", DINO, images(16)),
    Architecture("swin", hugging_face("SwinForImageClassification", **WINDOWS), images()),
    Architecture("swinv2", hugging_face("Swinv2ForImageClassification", **WINDOWS), images()),
    Architecture("segformer", SEGFORMER, images()),
    Architecture("pvt_v2", hugging_face("PvtV2ForImageClassification", **PYRAMID), images()),
    Architecture("levit", LEVIT, images()),
    Architecture("cvt", CVT, images()),
    Architecture("focalnet", FOCALNET, images()),
    Architecture("hiera", HIERA, images()),
    Architecture("videomae", VIDEO, noise("pixel_values", 4, 3, 16, 16)),
]
