"""Models of transformers, and adapters of peft on two of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo_models.base import logits, next_token, specimen

VOCABULARY, WIDTH, EXAMPLES, STEPS = 23, 16, 3, 5
SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
ROPE = SIZES | {"intermediate_size": 24, "num_key_value_heads": 1, "max_position_embeddings": 16}
BERT = SIZES | {"intermediate_size": 24, "max_position_embeddings": 16}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 16}
T5 = {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
EAGER = {"attn_implementation": "eager"}


def tokens(*more: str) -> dict[str, Tensor]:
    """Token indices with padding at the end of the last example; `more` names further inputs with tokens."""
    ids = torch.randint(1, VOCABULARY, (EXAMPLES, STEPS))
    mask = torch.ones(EXAMPLES, STEPS, dtype=torch.long)
    mask[-1, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask} | {name: ids.flip(1) for name in more}


def built(model: str, config: str, **sizes: Any) -> nn.Module:
    """A model of transformers by the names of its class and configuration."""
    import transformers

    return getattr(transformers, model)(getattr(transformers, config)(**sizes))


@specimen("transformers", "BERT classifier", logits)
def bert() -> tuple[nn.Module, Any]:
    return built("BertForSequenceClassification", "BertConfig", num_labels=3, **BERT), tokens()


@specimen("transformers", "BERT masked language model", next_token)
def bert_masked() -> tuple[nn.Module, Any]:
    return built("BertForMaskedLM", "BertConfig", **BERT, **EAGER), tokens()


@specimen("transformers", "DistilBERT classifier", logits)
def distilbert() -> tuple[nn.Module, Any]:
    sizes = {"vocab_size": VOCABULARY, "dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "num_labels": 3}
    return built("DistilBertForSequenceClassification", "DistilBertConfig", **sizes), tokens()


@specimen("transformers", "GPT-2", next_token)
def gpt2() -> tuple[nn.Module, Any]:
    return built("GPT2LMHeadModel", "GPT2Config", **GPT2), tokens()


@specimen("transformers", "GPT-2, attention written out", next_token)
def gpt2_eager() -> tuple[nn.Module, Any]:
    return built("GPT2LMHeadModel", "GPT2Config", **GPT2, **EAGER), tokens()


@specimen("transformers", "GPT-NeoX", next_token)
def neox() -> tuple[nn.Module, Any]:
    return built("GPTNeoXForCausalLM", "GPTNeoXConfig", **BERT), tokens()


@specimen("transformers", "OPT", next_token)
def opt() -> tuple[nn.Module, Any]:
    sizes = SIZES | {"ffn_dim": 24, "word_embed_proj_dim": WIDTH, "max_position_embeddings": 16}
    return built("OPTForCausalLM", "OPTConfig", **sizes), tokens()


@specimen("transformers", "Llama", next_token, rounds=True)
def llama() -> tuple[nn.Module, Any]:
    return built("LlamaForCausalLM", "LlamaConfig", **ROPE), tokens()


@specimen("transformers", "Llama, tied and attention written out", next_token, rounds=True)
def llama_eager() -> tuple[nn.Module, Any]:
    return built("LlamaForCausalLM", "LlamaConfig", **ROPE, **EAGER, tie_word_embeddings=True), tokens()


@specimen("transformers", "Qwen2", next_token, rounds=True)
def qwen() -> tuple[nn.Module, Any]:
    return built("Qwen2ForCausalLM", "Qwen2Config", **ROPE), tokens()


@specimen("transformers", "Gemma", next_token, rounds=True)
def gemma() -> tuple[nn.Module, Any]:
    return built("GemmaForCausalLM", "GemmaConfig", **ROPE, head_dim=8), tokens()


@specimen("transformers", "T5", next_token, rounds=True)
def t5() -> tuple[nn.Module, Any]:
    return built("T5ForConditionalGeneration", "T5Config", **T5), tokens("decoder_input_ids")


@specimen("transformers", "Switch Transformers", next_token, dtype=torch.float32)
@specimen("transformers", "Switch Transformers in double precision", next_token, rounds=True, warm=True)
def switch() -> tuple[nn.Module, Any]:
    sizes = T5 | {
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1,
        "num_experts": 3,
        "expert_capacity": 64,
    }
    model = built("SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", **sizes)
    return model, tokens("decoder_input_ids")


MOE = ROPE | {"num_local_experts": 3, "num_experts_per_tok": 2}


@specimen("transformers", "Mixtral", next_token, dtype=torch.float32)
def mixtral() -> tuple[nn.Module, Any]:
    return built("MixtralForCausalLM", "MixtralConfig", **MOE), tokens()


@specimen("transformers", "Mixtral, experts one by one", next_token, rounds=True)
def mixtral_eager() -> tuple[nn.Module, Any]:
    return built("MixtralForCausalLM", "MixtralConfig", **MOE, experts_implementation="eager"), tokens()


@specimen("transformers", "Mamba", next_token, rounds=True)
def mamba() -> tuple[nn.Module, Any]:
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "state_size": 4,
        "time_step_rank": 3,
    }
    return built("MambaForCausalLM", "MambaConfig", **sizes), tokens()


@specimen("transformers", "ViT", logits)
def vit() -> tuple[nn.Module, Any]:
    sizes = {key: value for key, value in SIZES.items() if key != "vocab_size"}
    sizes |= {"intermediate_size": 24, "image_size": 8, "patch_size": 4, "num_labels": 3}
    images = torch.randn(EXAMPLES, 3, 8, 8)
    return built("ViTForImageClassification", "ViTConfig", **sizes), {"pixel_values": images}


@specimen("transformers", "Whisper", next_token)
def whisper() -> tuple[nn.Module, Any]:
    sizes = {"vocab_size": VOCABULARY, "num_mel_bins": 4, "d_model": WIDTH, "max_source_positions": 6}
    sizes |= {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in (("layers", 1), ("ffn_dim", 24))}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_target_positions": 8}
    special = dict.fromkeys(["pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"], 1)
    model = built("WhisperForConditionalGeneration", "WhisperConfig", **sizes, **special)
    batch = {"input_features": torch.randn(EXAMPLES, 4, 12), "decoder_input_ids": tokens()["input_ids"]}
    return model, batch


@specimen("transformers", "wav2vec 2", logits)
def wav2vec() -> tuple[nn.Module, Any]:
    sizes = {key: value for key, value in BERT.items() if key not in ("vocab_size", "max_position_embeddings")}
    sizes |= {
        "conv_dim": (8, 8),
        "conv_kernel": (4, 3),
        "conv_stride": (2, 2),
        "num_labels": 3,
        "num_feat_extract_layers": 2,
    }
    sizes |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 8}
    model = built("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", **sizes)
    return model, {"input_values": torch.randn(EXAMPLES, 60)}


def adapted(model: nn.Module, **options: Any) -> nn.Module:
    """With trained low-rank adapters; what they start from is zero, so it is drawn anew by `Specimen.catch`."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=2, lora_alpha=4, lora_dropout=0.0, **options))


@specimen("peft", "LoRA on GPT-2", next_token)
def lora_gpt2() -> tuple[nn.Module, Any]:
    model = built("GPT2LMHeadModel", "GPT2Config", **GPT2)
    return adapted(model, target_modules=["c_attn"], fan_in_fan_out=True), tokens()


@specimen("peft", "LoRA on BERT", logits)
def lora_bert() -> tuple[nn.Module, Any]:
    model = built("BertForSequenceClassification", "BertConfig", num_labels=3, **BERT)
    return adapted(model, target_modules=["query", "value"], modules_to_save=["classifier"]), tokens()


@specimen("peft", "DoRA on BERT", logits)
def dora_bert() -> tuple[nn.Module, Any]:
    model = built("BertForSequenceClassification", "BertConfig", num_labels=3, **BERT)
    return adapted(model, target_modules=["query", "dense"], use_dora=True), tokens()


@specimen("peft", "IA3 on Llama", next_token, rounds=True)
def ia3_llama() -> tuple[nn.Module, Any]:
    from peft import IA3Config, get_peft_model

    model = built("LlamaForCausalLM", "LlamaConfig", **ROPE)
    config = IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"])
    return get_peft_model(model, config), tokens()


@specimen("peft", "prompt tuning on GPT-2", next_token)
def prompts_gpt2() -> tuple[nn.Module, Any]:
    from peft import PromptTuningConfig, get_peft_model

    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    return get_peft_model(built("GPT2LMHeadModel", "GPT2Config", **GPT2), config), tokens()
