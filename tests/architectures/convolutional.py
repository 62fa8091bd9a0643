"""Convolutional networks of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

from architectures.architecture import Architecture, hugging_face, images

STAGES: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2]}
NEXT: dict[str, Any] = {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2}

RESNET = "ResNetForImageClassification"
REGNET = "RegNetForImageClassification"

EFFICIENTNET = hugging_face(
    "EfficientNetForImageClassification",
    width_coefficient=0.25,
    depth_coefficient=0.5,
    depth_divisor=4,
    hidden_dim=320,
    in_channels=[32, 16, 24],
    out_channels=[16, 24, 40],
    kernel_sizes=[3, 3, 5],
    strides=[1, 2, 2],
    num_block_repeats=[1, 2, 2],
    expand_ratios=[1, 6, 6],
)
HGNET = hugging_face(
    "HGNetV2ForImageClassification",
    hidden_sizes=[16, 24],
    depths=[1, 1],
    stem_channels=[3, 8, 8],
    stage_in_channels=[8, 16],
    stage_mid_channels=[8, 12],
    stage_out_channels=[16, 24],
    stage_num_blocks=[1, 2],
    stage_downsample=[False, True],
    stage_downsample_strides=[2, 2],
    stage_light_block=[False, True],
    stage_kernel_size=[3, 5],
    stage_numb_of_layers=[2, 2],
)
TEXTNET = hugging_face(
    "TextNetForImageClassification",
    stem_out_channels=8,
    hidden_sizes=[8, 8, 16],
    conv_layer_kernel_sizes=[[[3, 3], [1, 3]], [[3, 3], [3, 1]]],
    conv_layer_strides=[[1, 2], [2, 1]],
)
MOBILEVIT = hugging_face(
    "MobileViTForImageClassification",
    image_size=32,
    hidden_sizes=[16, 16, 24],
    neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32],
)
POOLFORMER = hugging_face(
    "PoolFormerForImageClassification",
    num_encoder_blocks=2,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    patch_sizes=[7, 3],
    strides=[4, 2],
    padding=[2, 1],
)
BIT = hugging_face("BitForImageClassification", embedding_size=32, hidden_sizes=[32, 64], depths=[1, 1], num_groups=8)
SWIFTFORMER = hugging_face("SwiftFormerForImageClassification", depths=[1, 1], embed_dims=[8, 16])

CONVOLUTIONAL = [
    Architecture("resnet_basic", hugging_face(RESNET, layer_type="basic", **STAGES), images()),
    Architecture("resnet_bottleneck", hugging_face(RESNET, layer_type="bottleneck", **STAGES), images()),
    Architecture("regnet_x", hugging_face(REGNET, layer_type="x", groups_width=4, **STAGES), images()),
    Architecture("regnet_y", hugging_face(REGNET, layer_type="y", groups_width=4, **STAGES), images()),
    Architecture("convnext", hugging_face("ConvNextForImageClassification", **NEXT), images()),
    Architecture("convnextv2", hugging_face("ConvNextV2ForImageClassification", **NEXT), images(), prunes=False),
    Architecture("efficientnet", EFFICIENTNET, images()),
    Architecture("mobilenet_v1", hugging_face("MobileNetV1ForImageClassification", depth_multiplier=0.25), images()),
    Architecture("mobilenet_v2", hugging_face("MobileNetV2ForImageClassification", depth_multiplier=0.25), images()),
    Architecture("bit", BIT, images(), prunes=False),
    Architecture("hgnet_v2", HGNET, images()),
    Architecture("textnet", TEXTNET, images()),
    Architecture("poolformer", POOLFORMER, images()),
    Architecture("swiftformer", SWIFTFORMER, images()),
    Architecture("mobilevit", MOBILEVIT, images()),
]
