"""Real architectures with small random configurations: those of Hugging Face transformers, and plain torch ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from networks import DenseNet, LanguageLSTM, ResNetLike, ShuffleNet, SelfAttention, TokenEncoder, UNet
from torch import Tensor, nn

Batch = dict[str, Tensor]

VOCABULARY, TOKENS, SAMPLES = 50, 7, 3


@dataclass(frozen=True)
class Architecture:
    """How to build a model with random weights, and a batch for it."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Batch]
    prunes: bool  # whether dropping outputs finds something to drop

    def build(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """Build the model with weights and statistics far from their neutral start."""
        torch.manual_seed(0)
        model = self.make()
        shake_(model)
        return model.to(dtype).eval()

    def batch(self, dtype: torch.dtype = torch.float64, seed: int = 1) -> Batch:
        torch.manual_seed(seed)
        return {key: t.to(dtype) if t.is_floating_point() else t for key, t in self.inputs().items()}

    def __str__(self) -> str:
        return self.name


@torch.no_grad()
def shake_(model: nn.Module) -> None:
    """Give every parameter of one dimension and every running statistic a random value, as training would."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 2.0)
        elif name.endswith("running_mean") or (isinstance(tensor, nn.Parameter) and tensor.ndim == 1):
            tensor.add_(torch.randn_like(tensor), alpha=0.2)


def image(size: int = 32, channels: int = 3, name: str = "pixel_values") -> Callable[[], Batch]:
    return lambda: {name: torch.randn(SAMPLES, channels, size, size)}


def tokens(*names: str, **fixed: Any) -> Callable[[], Batch]:
    return lambda: {name: torch.randint(3, VOCABULARY, (SAMPLES, TOKENS)) for name in names or ("input_ids",)} | fixed


def hugging_face(model: str, config: str, /, **settings: Any) -> Callable[[], nn.Module]:
    """Return how to build a model of transformers, whose import is put off until then."""

    def make() -> nn.Module:
        import transformers

        made: nn.Module = getattr(transformers, model)._from_config(getattr(transformers, config)(**settings))
        return made

    return make


def found(name: str, make: Callable[[], nn.Module], inputs: Callable[[], Batch], prunes: bool = True) -> Architecture:
    return Architecture(name, make, inputs, prunes)


TRANSFORMER: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
PATCHES: dict[str, Any] = {"image_size": 16, "patch_size": 8}
TEXT: dict[str, Any] = {"vocab_size": VOCABULARY, "max_position_embeddings": 16}
DECODER: dict[str, Any] = TRANSFORMER | TEXT | {"use_cache": False}
GROUPED: dict[str, Any] = DECODER | {"num_key_value_heads": 1}
SEQ2SEQ: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "use_cache": False,
}
STAGES: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2]}
PYRAMID: dict[str, Any] = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4]}
SPEECH: dict[str, Any] = TRANSFORMER | {
    "conv_dim": (8, 8),
    "conv_kernel": (4, 3),
    "conv_stride": (2, 2),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": VOCABULARY,
}


def waves() -> Batch:
    return {"input_values": torch.randn(SAMPLES, 200)}


def pictures_and_words() -> Batch:
    return image(16)() | tokens()()


CONVOLUTIONAL = [
    found(
        "resnet_basic",
        hugging_face("ResNetForImageClassification", "ResNetConfig", layer_type="basic", **STAGES),
        image(),
    ),
    found(
        "resnet_bottleneck",
        hugging_face("ResNetForImageClassification", "ResNetConfig", layer_type="bottleneck", **STAGES),
        image(),
    ),
    found("regnet_x", hugging_face("RegNetForImageClassification", "RegNetConfig", layer_type="x", groups_width=4, **STAGES), image()),
    found("regnet_y", hugging_face("RegNetForImageClassification", "RegNetConfig", layer_type="y", groups_width=4, **STAGES), image()),
    found("convnext", hugging_face("ConvNextForImageClassification", "ConvNextConfig", hidden_sizes=[8, 16], depths=[1, 2], num_stages=2), image()),
    found("convnextv2", hugging_face("ConvNextV2ForImageClassification", "ConvNextV2Config", hidden_sizes=[8, 16], depths=[1, 2], num_stages=2), image()),
    found("efficientnet", hugging_face("EfficientNetForImageClassification", "EfficientNetConfig", 
        width_coefficient=0.5, depth_coefficient=0.3, depth_divisor=4, kernel_sizes=[3, 3, 5], in_channels=[16, 16, 24], out_channels=[16, 24, 40],
        strides=[1, 2, 2], num_block_repeats=[1, 2, 2], expand_ratios=[1, 6, 6], depthwise_padding=[], hidden_dim=64), image()),
    found("mobilenet_v1", hugging_face("MobileNetV1ForImageClassification", "MobileNetV1Config", depth_multiplier=0.25), image()),
    found("mobilenet_v2", hugging_face("MobileNetV2ForImageClassification", "MobileNetV2Config", depth_multiplier=0.25), image()),
    found("bit", hugging_face("BitForImageClassification", "BitConfig", embedding_size=32, hidden_sizes=[32, 64], depths=[1, 1], num_groups=8), image()),
    found("hgnet_v2", hugging_face("HGNetV2ForImageClassification", "HGNetV2Config",), image()),
    found("levit", hugging_face("LevitForImageClassification", "LevitConfig", image_size=32, hidden_sizes=[16, 24, 32], num_attention_heads=[2, 3, 4], depths=[1, 1, 1], key_dim=[8, 8, 8]), image()),
    found("poolformer", hugging_face("PoolFormerForImageClassification", "PoolFormerConfig", hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2, patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1]), image()),
    found("textnet", hugging_face("TextNetForImageClassification", "TextNetConfig"), image()),
    found("swiftformer", hugging_face("SwiftFormerForImageClassification", "SwiftFormerConfig", depths=[1, 1], embed_dims=[8, 16], num_classes=2), image()),
    found("mobilevit", hugging_face("MobileViTForImageClassification", "MobileViTConfig", image_size=32, hidden_sizes=[16, 16, 24], neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32]), image()),
]
VISION = [
    found("vit", hugging_face("ViTForImageClassification", "ViTConfig", **TRANSFORMER, **PATCHES), image(16)),
    found("deit", hugging_face("DeiTForImageClassificationWithTeacher", "DeiTConfig", **TRANSFORMER, **PATCHES), image(16)),
    found("beit", hugging_face("BeitForImageClassification", "BeitConfig", **TRANSFORMER, **PATCHES), image(16)),
    found("dinov2", hugging_face("Dinov2ForImageClassification", "Dinov2Config", hidden_size=16, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2, use_swiglu_ffn=True, **PATCHES), image(16)),
    found("swin", hugging_face("SwinForImageClassification", "SwinConfig", window_size=4, **PYRAMID), image()),
    found("swinv2", hugging_face("Swinv2ForImageClassification", "Swinv2Config", window_size=4, **PYRAMID), image()),
    found("segformer", hugging_face("SegformerForSemanticSegmentation", "SegformerConfig", num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=12), image()),
    found("pvt_v2", hugging_face("PvtV2ForImageClassification", "PvtV2Config", num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2]), image()),
    found("cvt", hugging_face("CvtForImageClassification", "CvtConfig", embed_dim=[8, 16], num_heads=[1, 2], depth=[1, 1], patch_sizes=[7, 3], patch_stride=[4, 2], patch_padding=[2, 1], mlp_ratio=[2.0, 2.0], attention_drop_rate=[0.0, 0.0], drop_rate=[0.0, 0.0], drop_path_rate=[0.0, 0.0], qkv_bias=[True, True], cls_token=[False, True], qkv_projection_method=["dw_bn", "dw_bn"], kernel_qkv=[3, 3], padding_kv=[1, 1], stride_kv=[2, 2], padding_q=[1, 1], stride_q=[1, 1]), image()),
    found("focalnet", hugging_face("FocalNetForImageClassification", "FocalNetConfig", image_size=32, patch_size=4, embed_dim=8, hidden_sizes=[8, 16], depths=[1, 1], focal_levels=[2, 2], focal_windows=[3, 3]), image()),
    found("hiera", hugging_face("HieraForImageClassification", "HieraConfig", image_size=[32, 32], embed_dim=8, depths=[1, 1], num_heads=[1, 2], query_stride=[2, 2], masked_unit_size=[4, 4], num_query_pool=1), image()),
    found("videomae", hugging_face("VideoMAEForVideoClassification", "VideoMAEConfig", num_frames=4, **TRANSFORMER, **PATCHES), lambda: {"pixel_values": torch.randn(2, 4, 3, 16, 16)}),
]
ENCODERS = [
    found("bert", hugging_face("BertForSequenceClassification", "BertConfig", **TRANSFORMER, **TEXT), tokens()),
    found("bert_mlm", hugging_face("BertForMaskedLM", "BertConfig", **TRANSFORMER, **TEXT), tokens()),
    found("distilbert", hugging_face("DistilBertForSequenceClassification", "DistilBertConfig", dim=16, n_layers=2, n_heads=2, hidden_dim=24, **TEXT), tokens()),
    found("roberta", hugging_face("RobertaForTokenClassification", "RobertaConfig", **TRANSFORMER, **TEXT), tokens()),
    found("albert", hugging_face("AlbertForSequenceClassification", "AlbertConfig", embedding_size=8, **TRANSFORMER, **TEXT), tokens()),
    found("electra", hugging_face("ElectraForSequenceClassification", "ElectraConfig", embedding_size=8, **TRANSFORMER, **TEXT), tokens()),
    found("deberta_v2", hugging_face("DebertaV2ForSequenceClassification", "DebertaV2Config", relative_attention=True, position_buckets=4, pos_att_type=["p2c", "c2p"], **TRANSFORMER, **TEXT), tokens()),
    found("modernbert", hugging_face("ModernBertForSequenceClassification", "ModernBertConfig", pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, **TRANSFORMER, **TEXT), tokens()),
    found("fnet", hugging_face("FNetForSequenceClassification", "FNetConfig", hidden_size=16, num_hidden_layers=2, intermediate_size=24, **TEXT), tokens()),
    found("esm", hugging_face("EsmForTokenClassification", "EsmConfig", pad_token_id=0, mask_token_id=1, **TRANSFORMER, **TEXT), tokens()),
    found("squeezebert", hugging_face("SqueezeBertForSequenceClassification", "SqueezeBertConfig", embedding_size=16, q_groups=2, k_groups=2, v_groups=2, post_attention_groups=1, intermediate_groups=2, output_groups=2, **TRANSFORMER, **TEXT), tokens()),
    found("xlnet", hugging_face("XLNetForSequenceClassification", "XLNetConfig", vocab_size=VOCABULARY, d_model=16, n_layer=2, n_head=2, d_inner=24, use_mems_eval=False), tokens()),
]
DECODERS = [
    found("gpt2", hugging_face("GPT2LMHeadModel", "GPT2Config", vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=16, use_cache=False), tokens()),
    found("gpt_neo", hugging_face("GPTNeoForCausalLM", "GPTNeoConfig", vocab_size=VOCABULARY, hidden_size=16, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]], max_position_embeddings=16, use_cache=False), tokens()),
    found("gpt_neox", hugging_face("GPTNeoXForCausalLM", "GPTNeoXConfig", **DECODER), tokens()),
    found("gptj", hugging_face("GPTJForCausalLM", "GPTJConfig", vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=16, rotary_dim=4, use_cache=False), tokens()),
    found("opt", hugging_face("OPTForCausalLM", "OPTConfig", hidden_size=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=24, word_embed_proj_dim=16, use_cache=False, **TEXT), tokens()),
    found("bloom", hugging_face("BloomForCausalLM", "BloomConfig", vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=2, use_cache=False), tokens()),
    found("llama", hugging_face("LlamaForCausalLM", "LlamaConfig", **GROUPED), tokens()),
    found("mistral", hugging_face("MistralForCausalLM", "MistralConfig", **GROUPED), tokens()),
    found("qwen2", hugging_face("Qwen2ForCausalLM", "Qwen2Config", **GROUPED), tokens()),
    found("qwen3", hugging_face("Qwen3ForCausalLM", "Qwen3Config", head_dim=8, **GROUPED), tokens()),
    found("gemma", hugging_face("GemmaForCausalLM", "GemmaConfig", head_dim=8, **GROUPED), tokens()),
    found("gemma2", hugging_face("Gemma2ForCausalLM", "Gemma2Config", head_dim=8, **GROUPED), tokens()),
    found("phi", hugging_face("PhiForCausalLM", "PhiConfig", **GROUPED), tokens()),
    found("phi3", hugging_face("Phi3ForCausalLM", "Phi3Config", pad_token_id=0, **GROUPED), tokens()),
    found("falcon", hugging_face("FalconForCausalLM", "FalconConfig", **DECODER), tokens()),
    found("mpt", hugging_face("MptForCausalLM", "MptConfig", vocab_size=VOCABULARY, d_model=16, n_heads=2, n_layers=2, max_seq_len=16, use_cache=False), tokens()),
    found("mixtral", hugging_face("MixtralForCausalLM", "MixtralConfig", num_local_experts=3, **GROUPED), tokens()),
    found("mamba", hugging_face("MambaForCausalLM", "MambaConfig", vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=2, use_cache=False), tokens()),
]
ENCODER_DECODERS = [
    found("t5", hugging_face("T5ForConditionalGeneration", "T5Config", vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, use_cache=False), tokens("input_ids", "decoder_input_ids")),
    found("t5_gated", hugging_face("T5ForConditionalGeneration", "T5Config", vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, use_cache=False, feed_forward_proj="gated-gelu", tie_word_embeddings=False), tokens("input_ids", "decoder_input_ids")),
    found("bart", hugging_face("BartForConditionalGeneration", "BartConfig", max_position_embeddings=16, **SEQ2SEQ), tokens("input_ids", "decoder_input_ids")),
    found("marian", hugging_face("MarianMTModel", "MarianConfig", max_position_embeddings=16, pad_token_id=0, decoder_start_token_id=0, **SEQ2SEQ), tokens("input_ids", "decoder_input_ids")),
    found("whisper", hugging_face("WhisperForConditionalGeneration", "WhisperConfig", num_mel_bins=10, max_source_positions=12, max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **SEQ2SEQ),
        lambda: {"input_features": torch.randn(2, 10, 24)} | {"decoder_input_ids": torch.randint(3, VOCABULARY, (2, TOKENS))}),
    found("clip", hugging_face("CLIPModel", "CLIPConfig", text_config=TRANSFORMER | TEXT | {"eos_token_id": 2}, vision_config=TRANSFORMER | PATCHES, projection_dim=8), pictures_and_words),
    found("siglip", hugging_face("SiglipModel", "SiglipConfig", text_config=TRANSFORMER | TEXT, vision_config=TRANSFORMER | PATCHES), pictures_and_words),
    found("wav2vec2", hugging_face("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", **SPEECH), waves),
    found("hubert", hugging_face("HubertForSequenceClassification", "HubertConfig", **SPEECH), waves),
    found("audio_spectrogram", hugging_face("ASTForAudioClassification", "ASTConfig", patch_size=8, max_length=24, num_mel_bins=16, frequency_stride=8, time_stride=8, **TRANSFORMER), lambda: {"input_values": torch.randn(2, 24, 16)}),
    found("patchtst", hugging_face("PatchTSTForPrediction", "PatchTSTConfig", num_input_channels=2, context_length=16, patch_length=4, patch_stride=4, prediction_length=4, d_model=16, num_attention_heads=2, num_hidden_layers=2, ffn_dim=24, use_cls_token=False), lambda: {"past_values": torch.randn(2, 16, 2)}),
]
PLAIN = [
    found("resnet_like", ResNetLike, image(name="images")),
    found("densenet", DenseNet, image(name="images")),
    found("shufflenet", ShuffleNet, image(name="images")),
    found("unet", UNet, image(name="images")),
    found("lstm", LanguageLSTM, tokens("tokens"), prunes=False),
    found("attention", SelfAttention, tokens("tokens")),
    found("transformer_encoder", TokenEncoder, tokens("tokens"), prunes=False),
]
ARCHITECTURES = [*CONVOLUTIONAL, *VISION, *ENCODERS, *DECODERS, *ENCODER_DECODERS, *PLAIN]
