"""Models of Hugging Face transformers with two towers, two sequences or sound."""

from __future__ import annotations

from typing import Any

from architectures.architecture import TOKENS, VOCABULARY, Architecture, both, hugging_face, images, noise, tokens
from architectures.text import SPECIAL, TEXT
from architectures.vision import PATCHES, TRANSFORMER

TOWERS: dict[str, Any] = {"text_config": TEXT | SPECIAL, "vision_config": TRANSFORMER | PATCHES}
T5: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "use_cache": False,
}
SEQUENCES: dict[str, Any] = SPECIAL | {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "decoder_start_token_id": 1,
    "use_cache": False,
}
SPEECH: dict[str, Any] = TRANSFORMER | {
    "vocab_size": VOCABULARY,
    "conv_dim": (8, 8),
    "conv_kernel": (4, 3),
    "conv_stride": (2, 2),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}

T5_GATED = hugging_face("T5ForConditionalGeneration", feed_forward_proj="gated-gelu", tie_word_embeddings=False, **T5)
BART = hugging_face("BartForConditionalGeneration", max_position_embeddings=16, **SEQUENCES)
MARIAN = hugging_face("MarianMTModel", max_position_embeddings=16, **SEQUENCES)
WHISPER = hugging_face(
    "WhisperForConditionalGeneration",
    num_mel_bins=10,
    max_source_positions=12,
    max_target_positions=16,
    **SEQUENCES,
)
SPECTROGRAM = hugging_face(
    "ASTForAudioClassification",
    patch_size=8,
    max_length=24,
    num_mel_bins=16,
    frequency_stride=8,
    time_stride=8,
    **TRANSFORMER,
)
PATCHTST = hugging_face(
    "PatchTSTForPrediction",
    num_input_channels=2,
    context_length=16,
    patch_length=4,
    patch_stride=4,
    prediction_length=TOKENS,
    d_model=16,
    num_attention_heads=2,
    num_hidden_layers=2,
    ffn_dim=24,
    use_cls_token=False,
)
PAIRS = tokens("input_ids", "decoder_input_ids")

SEVERAL = [
    Architecture("t5", hugging_face("T5ForConditionalGeneration", **T5), PAIRS),
    Architecture("t5_gated", T5_GATED, PAIRS),
    Architecture("bart", BART, PAIRS),
    Architecture("marian", MARIAN, PAIRS),
    Architecture("whisper", WHISPER, both(noise("input_features", 10, 24), tokens("decoder_input_ids"))),
    Architecture("clip", hugging_face("CLIPModel", projection_dim=8, **TOWERS), both(images(16), tokens())),
    Architecture("siglip", hugging_face("SiglipModel", **TOWERS), both(images(16), tokens())),
    Architecture("wav2vec2", hugging_face("Wav2Vec2ForSequenceClassification", **SPEECH), noise("input_values", 200)),
    Architecture("hubert", hugging_face("HubertForSequenceClassification", **SPEECH), noise("input_values", 200)),
    Architecture("spectrogram", SPECTROGRAM, noise("input_values", 24, 16)),
    Architecture("patchtst", PATCHTST, noise("past_values", 16, 2)),
]
