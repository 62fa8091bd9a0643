"""Language models of Hugging Face transformers: encoders and decoders."""

from __future__ import annotations

from typing import Any

from architectures.architecture import VOCABULARY, Architecture, hugging_face, tokens
from architectures.vision import TRANSFORMER

TEXT: dict[str, Any] = TRANSFORMER | {"vocab_size": VOCABULARY, "max_position_embeddings": 16}
SPECIAL: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER: dict[str, Any] = TEXT | SPECIAL | {"use_cache": False}
GROUPED: dict[str, Any] = DECODER | {"num_key_value_heads": 1}
OPENAI: dict[str, Any] = SPECIAL | {
    "vocab_size": VOCABULARY,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 16,
    "use_cache": False,
}

DISTILBERT = hugging_face(
    "DistilBertForSequenceClassification",
    vocab_size=VOCABULARY,
    max_position_embeddings=16,
    dim=16,
    n_layers=2,
    n_heads=2,
    hidden_dim=24,
)
DEBERTA = hugging_face(
    "DebertaV2ForSequenceClassification",
    relative_attention=True,
    position_buckets=4,
    pos_att_type=["p2c", "c2p"],
    **TEXT,
)
SQUEEZEBERT = hugging_face(
    "SqueezeBertForSequenceClassification",
    embedding_size=16,
    q_groups=2,
    k_groups=2,
    v_groups=2,
    intermediate_groups=2,
    output_groups=2,
    **TEXT,
)
XLNET = hugging_face(
    "XLNetForSequenceClassification",
    vocab_size=VOCABULARY,
    d_model=16,
    n_layer=2,
    n_head=2,
    d_inner=24,
    use_mems_eval=False,
)
MODERNBERT = hugging_face("ModernBertForSequenceClassification", cls_token_id=1, sep_token_id=2, **TEXT, **SPECIAL)
ALBERT = hugging_face("AlbertForSequenceClassification", embedding_size=8, **TEXT)
ELECTRA = hugging_face("ElectraForSequenceClassification", embedding_size=8, **TEXT)
ESM = hugging_face("EsmForTokenClassification", pad_token_id=0, mask_token_id=1, **TEXT)

ENCODERS = [
    Architecture("bert", hugging_face("BertForSequenceClassification", **TEXT), tokens()),
    Architecture("bert_masked", hugging_face("BertForMaskedLM", **TEXT), tokens()),
    Architecture("distilbert", DISTILBERT, tokens()),
    Architecture("roberta", hugging_face("RobertaForTokenClassification", **TEXT), tokens()),
    Architecture("albert", ALBERT, tokens()),
    Architecture("electra", ELECTRA, tokens()),
    Architecture("deberta_v2", DEBERTA, tokens()),
    Architecture("modernbert", MODERNBERT, tokens()),
    Architecture("fnet", hugging_face("FNetForSequenceClassification", **TEXT), tokens()),
    Architecture("esm", ESM, tokens()),
    Architecture("squeezebert", SQUEEZEBERT, tokens()),
    Architecture("xlnet", XLNET, tokens()),
]

NEO = hugging_face(
    "GPTNeoForCausalLM",
    num_layers=2,
    num_heads=2,
    attention_types=[[["global", "local"], 1]],
    hidden_size=16,
    vocab_size=VOCABULARY,
    max_position_embeddings=16,
    use_cache=False,
    **SPECIAL,
)
BLOOM = hugging_face("BloomForCausalLM", vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=2, use_cache=False)
MPT = hugging_face(
    "MptForCausalLM", vocab_size=VOCABULARY, d_model=16, n_heads=2, n_layers=2, max_seq_len=16, use_cache=False
)
MAMBA = hugging_face(
    "MambaForCausalLM", vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=2, use_cache=False
)
MIXTRAL = hugging_face("MixtralForCausalLM", num_local_experts=3, experts_implementation="eager", **GROUPED)

DECODERS = [
    Architecture("gpt2", hugging_face("GPT2LMHeadModel", **OPENAI), tokens()),
    Architecture("gpt_neo", NEO, tokens()),
    Architecture("gpt_neox", hugging_face("GPTNeoXForCausalLM", **DECODER), tokens()),
    Architecture("gptj", hugging_face("GPTJForCausalLM", rotary_dim=4, **OPENAI), tokens()),
    Architecture("opt", hugging_face("OPTForCausalLM", ffn_dim=24, word_embed_proj_dim=16, **DECODER), tokens()),
    Architecture("bloom", BLOOM, tokens()),
    Architecture("llama", hugging_face("LlamaForCausalLM", **GROUPED), tokens()),
    Architecture("mistral", hugging_face("MistralForCausalLM", **GROUPED), tokens()),
    Architecture("qwen2", hugging_face("Qwen2ForCausalLM", **GROUPED), tokens()),
    Architecture("qwen3", hugging_face("Qwen3ForCausalLM", head_dim=8, **GROUPED), tokens()),
    Architecture("gemma2", hugging_face("Gemma2ForCausalLM", head_dim=8, **GROUPED), tokens()),
    Architecture("phi", hugging_face("PhiForCausalLM", **GROUPED), tokens()),
    Architecture("phi3", hugging_face("Phi3ForCausalLM", **GROUPED), tokens()),
    Architecture(
        "falcon", hugging_face("FalconForCausalLM", tie_word_embeddings=False, **DECODER), tokens(), prunes=False
    ),
    Architecture("mpt", MPT, tokens()),
    Architecture("mixtral", MIXTRAL, tokens(), prunes=False),
    Architecture("mamba", MAMBA, tokens(), prunes=False),
]
