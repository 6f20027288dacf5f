"""The families of decoders, a row each: the form of their layers, and the keys of their config.json.

To add one: a row of FORMS and of DECODERS, and its model in the golden files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wire.errors import InputError

from .config import ACTIVATIONS, Config
from .decoder import FULL, GATE_AND_UP, SLIDING, Form, Names, Settings, kind_of
from .experts import Experts
from .family import Kind
from .keys import COMMON, DECODING, FORM, SPEED, TRAINING, UNREAD, Key, Only, Same, Used

Lengths = tuple[tuple[str, int | None], ...]

# -- how far each layer looks back


def _window(config: Config, key: str = "sliding_window") -> int | None:
    return None if config[key] is None else config.integer(key)


def _alike(config: Config, layers: int) -> Lengths:
    """Mistral: every layer alike."""
    return ((FULL, _window(config)),) * layers


def _alike_if_used(config: Config, layers: int) -> Lengths:
    """Mixtures of Qwen3: every layer alike, where windows are used."""
    return ((FULL, _window(config) if config.flag("use_sliding_window") else None),) * layers


def _by_kind(config: Config, kinds: list[str], window: int | None) -> Lengths:
    """Layers say of what kind they are, else they are of these kinds."""
    layers, by_layer = len(kinds), config["layer_types"]
    if by_layer is not None:
        if not isinstance(by_layer, list) or len(by_layer) != layers or not {FULL, SLIDING} >= set(map(str, by_layer)):
            raise config.unknown("layer_types", by_layer, [f"a list of {layers}, of these: {FULL}, {SLIDING}"])
        kinds = by_layer
    if window is None and SLIDING in kinds:
        raise InputError(
            f"{config.file}: layers have {SLIDING}, and sliding_window is not set, or use_sliding_window is false",
            next_step=f"Set sliding_window and use_sliding_window, or write {FULL} in layer_types",
        )
    return tuple([(kind, window if kind == SLIDING else None) for kind in kinds])


def _from_some_layer(config: Config, layers: int) -> Lengths:
    """Qwen: from `max_window_layers` on, if any do."""
    window = _window(config) if config.flag("use_sliding_window") else None
    first = config.integer("max_window_layers", least=0)
    kinds = [FULL if number < first or window is None else SLIDING for number in range(layers)]
    return _by_kind(config, kinds, window)


def _every_other_before(config: Config, layers: int) -> Lengths:
    """Mixtures of Qwen2: every other one before `max_window_layers`, if any do."""
    used, first = config.flag("use_sliding_window"), config.integer("max_window_layers", least=0)
    kinds = [SLIDING if used and number % 2 == 0 and number < first else FULL for number in range(layers)]
    return _by_kind(config, kinds, _window(config) if used else None)


def _every_other(config: Config, layers: int) -> Lengths:
    """Gemma 2 and gpt-oss: every other one, the first one too."""
    return _by_kind(config, [FULL if number % 2 else SLIDING for number in range(layers)], _window(config))


def _all_but_some(config: Config, layers: int) -> Lengths:
    """Gemma 3: all layers but every n-th."""
    pattern = config.integer("sliding_window_pattern")
    kinds = [SLIDING if (number + 1) % pattern else FULL for number in range(layers)]
    return _by_kind(config, kinds, _window(config))


# -- what queries are scaled by


def _of_gpt2(config: Config, size: int, layer: int) -> float:
    scaled, by_layer = config.flag("scale_attn_weights"), config.flag("scale_attn_by_inverse_layer_idx")
    return (size**-0.5 if scaled else 1.0) / (layer + 1 if by_layer else 1)


def _of_gemma(config: Config, size: int, layer: int) -> float:
    return float(config.integer("query_pre_attn_scalar") ** -0.5)


# -- which layers are mixtures


def _some(config: Config, layers: int) -> tuple[bool, ...]:
    """Qwen: every n-th layer, except those that are named."""
    step, plain = config.integer("decoder_sparse_step"), config["mlp_only_layers"] or []
    if not isinstance(plain, list) or not all(type(number) is int for number in plain):
        raise InputError(f"{config.file}: mlp_only_layers is a list of layers, got {plain!r:.60}")
    return tuple([number not in plain and (number + 1) % step == 0 for number in range(layers)])


# -- forms

LLAMA = Form(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
QWEN3 = Form(
    qkv_bias="attention_bias", out_bias="attention_bias", lengths=_from_some_layer,
    names=Names(head_norms=("self_attn.q_norm", "self_attn.k_norm")),
)  # fmt: skip
QWEN_EXPERTS = Experts("num_experts", inner="moe_intermediate_size", renormalised="norm_topk_prob", sparse=_some)
GEMMA = Form(
    norm="rms_plus_one", qkv_bias="attention_bias", out_bias="attention_bias", scaled_table=True,
    act=lambda config: ACTIVATIONS["gelu_pytorch_tanh"] if config["hidden_act"] == "gelu"  # as older files call it
    else config.activation("hidden_act"),
)  # fmt: skip
GEMMA_NAMES = Names(
    attention_end_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_end_norm="post_feedforward_layernorm",
)
GEMMA2 = replace(
    GEMMA, act=lambda config: config.activation("hidden_activation"), names=GEMMA_NAMES, lengths=_every_other,
    scale=_of_gemma, cap="attn_logit_softcapping", logit_cap="final_logit_softcapping",
)  # fmt: skip
YARN_OF_GPT_OSS = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
FORMS: dict[str, Form] = {
    "bloom": Form(
        Settings(layers="n_layer", heads="n_head", kv_heads="", head_dim="", inner="", positions="",
                 eps="layer_norm_epsilon"),
        lambda config: ACTIVATIONS["gelu_new"],
        Names(prefixes=("transformer.", ""), known_by="ln_f.weight", table="word_embeddings",
              table_norm="word_embeddings_layernorm", layer="h", norm="ln_f",
              qkv=("self_attention.query_key_value",), out="self_attention.dense",
              mlp=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")),
        norm="layer", mixed=True, positions="slopes", counted=True, qkv_bias=True, out_bias=True, mlp_bias=True,
        norm_is_residual="apply_residual_connection_post_layernorm",
    ),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": replace(
        GEMMA2, lengths=_all_but_some, cap="", thetas={FULL: "rope_theta", SLIDING: "rope_local_base_freq"},
        names=replace(GEMMA_NAMES, head_norms=("self_attn.q_norm", "self_attn.k_norm")),
    ),
    "gpt2": Form(
        Settings("n_layer", "n_head", "", "n_embd", "", "n_inner", "n_positions", "layer_norm_epsilon"),
        lambda config: config.activation("activation_function"),
        Names(prefixes=("transformer.", ""), known_by="ln_f.weight", table="wte", positions="wpe", layer="h",
              attention_norm="ln_1", mlp_norm="ln_2", norm="ln_f", qkv=("attn.c_attn",), out="attn.c_proj",
              mlp=("mlp.c_fc", "mlp.c_proj")),
        norm="layer", transposed=True, positions="learned", scale=_of_gpt2, qkv_bias=True, out_bias=True,
        mlp_bias=True,
    ),
    "gpt_neox": Form(
        Settings(kv_heads="", head_dim="", eps="layer_norm_eps"),
        names=Names(prefixes=("gpt_neox.", ""), known_by="final_layer_norm.weight", table="embed_in",
                    norm="final_layer_norm", qkv=("attention.query_key_value",), out="attention.dense",
                    mlp=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), head="embed_out.weight"),
        norm="layer", parallel="use_parallel_residual", mixed=True, qkv_bias="attention_bias",
        out_bias="attention_bias", mlp_bias=True, partial="rotary_pct",
        thetas={FULL: "rotary_emb_base", SLIDING: "rotary_emb_base"},
    ),
    "gpt_oss": Form(
        act=lambda config: ACTIVATIONS["silu"], names=Names(sinks="self_attn.sinks"), norm="rms_wide",
        qkv_bias="attention_bias", out_bias="attention_bias", rotary=YARN_OF_GPT_OSS, lengths=_every_other,
        experts=Experts("num_local_experts", router="mlp.router", router_bias=True, of_chosen=True, clamped=True),
    ),
    "llama": LLAMA,
    "mistral": Form(lengths=_alike),
    "mixtral": Form(
        lengths=_alike,
        experts=Experts("num_local_experts", router="block_sparse_moe.gate", expert="block_sparse_moe.experts.{}",
                        parts=("w1", "w3", "w2")),
    ),
    "opt": Form(
        Settings(kv_heads="", head_dim="", inner="ffn_dim", eps=1e-5),
        lambda config: config.activation("activation_function"),
        Names(prefixes=("model.decoder.", "decoder."), known_by="embed_positions.weight", positions="embed_positions",
              attention_norm="self_attn_layer_norm", mlp_norm="final_layer_norm", norm="final_layer_norm",
              out="self_attn.out_proj", mlp=("fc1", "fc2"), project_in="project_in", project_out="project_out"),
        norm="layer", positions="learned", offset=2, counted=True, norms_first="do_layer_norm_before",
        final_norm=lambda config: config.flag("do_layer_norm_before") and not config.flag("_remove_final_layer_norm"),
        table_width="word_embed_proj_dim", qkv_bias="enable_bias", out_bias="enable_bias", mlp_bias="enable_bias",
    ),
    "phi3": Form(
        names=Names(qkv=("self_attn.qkv_proj",), mlp=GATE_AND_UP), lengths=_alike, partial="partial_rotary_factor",
        scalings=("default", "longrope"),
    ),
    "qwen2": Form(qkv_bias=True, lengths=_from_some_layer),
    "qwen2_moe": Form(
        qkv_bias="qkv_bias", lengths=_every_other_before,
        experts=replace(QWEN_EXPERTS, shared="mlp.shared_expert", shared_inner="shared_expert_intermediate_size"),
    ),
    "qwen3": QWEN3,
    "qwen3_moe": replace(QWEN3, lengths=_alike_if_used, experts=QWEN_EXPERTS),
}  # fmt: skip

# -- keys

KEYS: dict[str, Key] = {
    **COMMON,
    "attention_dropout": TRAINING,
    "hidden_size": Used(4096),
    "max_position_embeddings": Used(2048),
    "num_attention_heads": Used(32),
    "num_hidden_layers": Used(32),
    "rope_parameters": Used(None),
    "rope_scaling": Used(None),
    "rope_theta": Used(10_000.0),
    "tie_word_embeddings": Used(False),
}
ROTARY: dict[str, Key] = {  # with heads that may share keys and values
    **KEYS,
    "head_dim": Used(None),
    "hidden_act": Used("silu"),
    "num_key_value_heads": Used(None),
    "partial_rotary_factor": Only((1.0,)),
    "rms_norm_eps": Used(1e-6),
}
LLAMA_KEYS: dict[str, Key] = {
    **ROTARY,
    "attention_bias": Used(False),
    "eos_token_id": Used(2),
    "intermediate_size": Used(11008),
    "is_llama_config": UNREAD,
    "mlp_bias": Used(False),
    "pretraining_tp": SPEED,
    "rope_interleaved": Only((False,)),
    "vocab_size": Used(32000),
}
MISTRAL_KEYS: dict[str, Key] = {
    **ROTARY,
    "eos_token_id": Used(2),
    "intermediate_size": Used(14336),
    "max_position_embeddings": Used(131072),
    "num_key_value_heads": Used(8),
    "sliding_window": Used(4096),
    "vocab_size": Used(32000),
}
ROUTED: dict[str, Key] = {
    "num_experts_per_tok": Used(2),
    "output_router_logits": FORM,
    "router_jitter_noise": TRAINING,
}
QWEN2_KEYS: dict[str, Key] = {
    **ROTARY,
    "intermediate_size": Used(22016),
    "layer_types": Used(None),
    "max_position_embeddings": Used(32768),
    "max_window_layers": Used(28),
    "num_key_value_heads": Used(32),
    "sliding_window": Used(4096),
    "use_mrope": Only((False,)),
    "use_sliding_window": Used(False),
    "vocab_size": Used(151936),
}
QWEN2_MOE_KEYS: dict[str, Key] = {
    **QWEN2_KEYS,
    **ROUTED,
    "decoder_sparse_step": Used(1),
    "hidden_size": Used(2048),
    "intermediate_size": Used(5632),
    "mlp_only_layers": Used(None),
    "moe_intermediate_size": Used(1408),
    "norm_topk_prob": Used(False),
    "num_attention_heads": Used(16),
    "num_experts": Used(60),
    "num_experts_per_tok": Used(4),
    "num_hidden_layers": Used(24),
    "num_key_value_heads": Used(16),
    "qkv_bias": Used(True),
    "shared_expert_intermediate_size": Used(5632),
}
QWEN3_MOE_KEYS: dict[str, Key] = {
    **{key: row for key, row in QWEN2_MOE_KEYS.items()
       if key not in ("layer_types", "qkv_bias", "shared_expert_intermediate_size")},
    "attention_bias": Used(False),
    "intermediate_size": Used(6144),
    "max_window_layers": UNREAD,
    "moe_intermediate_size": Used(768),
    "num_attention_heads": Used(32),
    "num_experts": Used(128),
    "num_experts_per_tok": Used(8),
    "num_key_value_heads": Used(4),
}  # fmt: skip
GEMMA_KEYS: dict[str, Key] = {
    **ROTARY,
    "attention_bias": Used(False),
    "eos_token_id": Used(1),
    "head_dim": Used(256),
    "hidden_act": Used("gelu_pytorch_tanh"),
    "hidden_activation": UNREAD,
    "hidden_size": Used(3072),
    "intermediate_size": Used(24576),
    "max_position_embeddings": Used(8192),
    "num_attention_heads": Used(16),
    "num_hidden_layers": Used(28),
    "num_key_value_heads": Used(16),
    "tie_word_embeddings": Used(True),
    "use_bidirectional_attention": Only((None, False)),
    "vocab_size": Used(256000),
}
GEMMA2_KEYS: dict[str, Key] = {
    **GEMMA_KEYS,
    "attn_logit_softcapping": Used(50.0),
    "cache_implementation": SPEED,
    "final_logit_softcapping": Used(30.0),
    "hidden_act": UNREAD,
    "hidden_activation": Used("gelu_pytorch_tanh"),
    "hidden_size": Used(2304),
    "intermediate_size": Used(9216),
    "layer_types": Used(None),
    "num_attention_heads": Used(8),
    "num_hidden_layers": Used(26),
    "num_key_value_heads": Used(4),
    "query_pre_attn_scalar": Used(256),
    "sliding_window": Used(4096),
}
DECODERS: dict[str, tuple[str, str, dict[str, Key]]] = {  # the names of classes, and the keys
    "bloom": ("Bloom", "ForCausalLM", {
        **COMMON,
        "apply_residual_connection_post_layernorm": Used(False),
        "attention_dropout": TRAINING,
        "attention_softmax_in_fp32": UNREAD,
        "bias_dropout_fusion": UNREAD,
        "eos_token_id": Used(2),
        "hidden_size": Used(64),
        "layer_norm_epsilon": Used(1e-5),
        "masked_softmax_fusion": UNREAD,
        "n_head": Used(8),
        "n_inner": UNREAD,
        "n_layer": Used(2),
        "offset_alibi": UNREAD,
        "pretraining_tp": SPEED,
        "seq_length": UNREAD,
        "skip_bias_add": UNREAD,
        "skip_bias_add_qkv": UNREAD,
        "slow_but_exact": SPEED,
        "tie_word_embeddings": Used(True),
        "unk_token_id": UNREAD,
        "vocab_size": Used(250880),
    }),
    "gemma": ("Gemma", "ForCausalLM", GEMMA_KEYS),
    "gemma2": ("Gemma2", "ForCausalLM", GEMMA2_KEYS),
    "gemma3_text": ("Gemma3Text", "ForCausalLM", {
        **GEMMA2_KEYS,
        "_sliding_window_pattern": Same("transformers writes it beside layer_types, which says it"),
        "attn_logit_softcapping": UNREAD,
        "final_logit_softcapping": Used(None),
        "max_position_embeddings": Used(131072),
        "rope_local_base_freq": Used(10_000.0),
        "rope_theta": Used(1_000_000.0),
        "sliding_window_pattern": Used(6),
        "use_bidirectional_attention": Only((False, None)),
        "vocab_size": Used(262208),
    }),
    "gpt2": ("GPT2", "LMHeadModel", {
        **COMMON,
        "activation_function": Used("gelu_new"),
        "add_cross_attention": Only((False,)),
        "attn_pdrop": TRAINING,
        "embd_pdrop": TRAINING,
        "eos_token_id": Used(50256),
        "layer_norm_epsilon": Used(1e-5),
        "n_ctx": Same("no model code of transformers reads it; n_positions says it"),
        "n_embd": Used(768),
        "n_head": Used(12),
        "n_inner": Used(None),
        "n_layer": Used(12),
        "n_positions": Used(1024),
        "predict_special_tokens": FORM,
        "reorder_and_upcast_attn": SPEED,
        "resid_pdrop": TRAINING,
        "scale_attn_by_inverse_layer_idx": Used(False),
        "scale_attn_weights": Used(True),
        **dict.fromkeys(
            ("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
             "summary_use_proj"),
            Same("only the head of GPT2DoubleHeadsModel reads it"),
        ),
        "tie_word_embeddings": Used(True),
        "vocab_size": Used(50257),
    }),
    "gpt_neox": ("GPTNeoX", "ForCausalLM", {
        **KEYS,
        **DECODING,
        "attention_bias": Used(True),
        "eos_token_id": Used(2),
        "hidden_act": Used("gelu"),
        "hidden_size": Used(6144),
        "intermediate_size": Used(24576),
        "layer_norm_eps": Used(1e-5),
        "num_attention_heads": Used(64),
        "num_hidden_layers": Used(44),
        "rope_theta": UNREAD,
        "rotary_emb_base": Used(10_000.0),
        "rotary_pct": Used(0.25),
        "use_parallel_residual": Used(True),
        "vocab_size": Used(50432),
    }),
    "gpt_oss": ("GptOss", "ForCausalLM", {
        **ROTARY,
        **ROUTED,
        "attention_bias": Used(True),
        "experts_per_token": UNREAD,
        "head_dim": Used(64),
        "hidden_act": UNREAD,
        "hidden_size": Used(2880),
        "initial_context_length": UNREAD,
        "intermediate_size": Used(2880),
        "layer_types": Used(None),
        "max_position_embeddings": Used(131072),
        "num_attention_heads": Used(64),
        "num_experts_per_tok": Used(4),
        "num_hidden_layers": Used(36),
        "num_key_value_heads": Used(8),
        "num_local_experts": Used(128),
        "rms_norm_eps": Used(1e-5),
        "rope_theta": Used(150_000.0),
        "sliding_window": Used(128),
        "swiglu_alpha": Used(1.702),
        "swiglu_limit": Used(7.0),
        "vocab_size": Used(201088),
    }),
    "llama": ("Llama", "ForCausalLM", LLAMA_KEYS),
    "mistral": ("Mistral", "ForCausalLM", MISTRAL_KEYS),
    "mixtral": ("Mixtral", "ForCausalLM", {
        **MISTRAL_KEYS,
        **ROUTED,
        "num_local_experts": Used(8),
        "rms_norm_eps": Used(1e-5),
        "rope_theta": Used(1_000_000.0),
        "sliding_window": Used(None),
    }),
    "opt": ("OPT", "ForCausalLM", {
        **COMMON,
        "_remove_final_layer_norm": Used(False),
        "activation_dropout": TRAINING,
        "activation_function": Used("relu"),
        "attention_dropout": TRAINING,
        "do_layer_norm_before": Used(True),
        "dropout": TRAINING,
        "enable_bias": Used(True),
        "eos_token_id": Used(2),
        "ffn_dim": Used(3072),
        "hidden_size": Used(768),
        "init_std": Same("weights are drawn by it, and then read from the files"),
        "layer_norm_elementwise_affine": Only((True,)),
        "layerdrop": TRAINING,
        "max_position_embeddings": Used(2048),
        "num_attention_heads": Used(12),
        "num_hidden_layers": Used(12),
        "tie_word_embeddings": Used(True),
        "vocab_size": Used(50272),
        "word_embed_proj_dim": Used(None),
    }),
    "phi3": ("Phi3", "ForCausalLM", {
        **ROTARY,
        "attention_bias": Only((False,)),
        "embd_pdrop": TRAINING,
        "eos_token_id": Used(32000),
        "hidden_size": Used(3072),
        "intermediate_size": Used(8192),
        "max_position_embeddings": Used(4096),
        "original_max_position_embeddings": Used(4096),
        "partial_rotary_factor": Used(1.0),
        "resid_pdrop": TRAINING,
        "rms_norm_eps": Used(1e-5),
        "sliding_window": Used(None),
        "vocab_size": Used(32064),
    }),
    "qwen2": ("Qwen2", "ForCausalLM", QWEN2_KEYS),
    "qwen2_moe": ("Qwen2Moe", "ForCausalLM", QWEN2_MOE_KEYS),
    "qwen3": ("Qwen3", "ForCausalLM", {**QWEN2_KEYS, "attention_bias": Used(False), "head_dim": Used(128)}),
    "qwen3_moe": ("Qwen3Moe", "ForCausalLM", QWEN3_MOE_KEYS),
}  # fmt: skip
RENAMED = {  # keys that have two names: the other one, and that of the table
    "gpt_oss": {"num_experts": "num_local_experts"},
    "mixtral": {"num_experts": "num_local_experts"},
    "qwen3_moe": {"num_local_experts": "num_experts"},
}
LEFT = {
    r"rotary_emb\.inv_freq$": "it is computed from rope_theta",
    r"\.attn(ention)?\.(masked_)?bias$": "the causal mask, which is known",
}


def kind_with(model_type: str, **changes: Any) -> Kind:
    """The model type with another form of its decoder, as files of other programs have it."""
    name, ending, keys = DECODERS[model_type]
    classes = (f"{name}Model", name.removesuffix("Text") + ending)
    return kind_of(replace(FORMS[model_type], **changes), keys, classes, LEFT, RENAMED.get(model_type, {}))


KINDS: dict[str, Kind] = {model_type: kind_with(model_type) for model_type in DECODERS}
