"""Keys: what is done with each setting of a config.json.  Data only.

Every key of a file is one of three: it is used, it changes no value that a model gives, or it is allowed to have some
values only.  A key that is in no table is refused by name (`config.py`), for it may change the model.  A family's own
table is in its file; `COMMON` holds what all of them share.  To know one more key, add a row with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Used:
    """The family reads it; `default` is what its absence means to transformers."""

    default: Any = None


@dataclass(frozen=True, slots=True)
class Same:
    """A setting that changes no value of the outputs, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Only:
    """A setting that changes values; only these are known, and the first is what its absence means."""

    allowed: tuple[Any, ...]


Key = Used | Same | Only

TRAINING = Same("only training reads it")
FIRST_VALUES = Same("weights are drawn by it, and then read from the files")
GENERATION = Same("generate() takes it as an argument")
TEXT = Same("the tokenizer reads it")
FORM = Same("it changes the form of what transformers returns, not the values")
SPEED = Same("it changes how values are computed, not which")
TOLD = Same("it says where the files come from")
UNREAD = Same("no model code of transformers reads it")

_REASONS: dict[Same, str] = {
    GENERATION: """
        assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens diversity_penalty
        do_sample early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff
        exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty max_length
        max_new_tokens min_length no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule
        num_beam_groups num_beams num_return_sequences output_scores remove_invalid_values repetition_penalty
        return_dict_in_generate suppress_tokens target_lookbehind task_specific_params temperature top_k top_p typical_p
    """,
    TEXT: """
        bos_token_id cls_token_id decoder_start_token_id mask_token_id model_max_length pad_token_id prefix sep_token_id
        tokenizer_class unk_token_id
    """,
    FORM: "output_attentions output_hidden_states output_past return_dict tie_last_hidden_states torchscript",
    SPEED: """
        _attn_implementation _flash_attn_2_enabled attn_implementation chunk_size_feed_forward flash_attention
        low_cpu_mem_usage use_bfloat16 use_cache use_flash_attention_2
    """,
    TRAINING: """
        classifier_dropout finetuning_task gradient_checkpointing hidden_dropout label_smoothing problem_type
        router_aux_loss_coef
    """,
    FIRST_VALUES: "initializer_factor initializer_range",
    UNREAD: "_num_labels language max_sequence_length n_special xla_device",
    TOLD: """
        _commit_hash _name_or_path base_model_name_or_path export_model_type model_name name_or_path
        transformers.js_config transformers_version unsloth_fixed unsloth_version
    """,
}
COMMON: dict[str, Key] = {
    **{key: reason for reason, keys in _REASONS.items() for key in keys.split()},
    "architectures": Used(),
    "auto_map": Only((None,)),  # code of the folder's own says what the model computes
    "custom_pipelines": Only((None,)),
    "dtype": Used(),
    "eos_token_id": Used(),
    "id2label": Used(),
    "is_encoder_decoder": Only((False,)),
    "label2id": Same("it names outputs, of which `id2label` says how many there are"),
    "model_type": Used(),
    "num_labels": Used(),
    "per_layer_config": Only((None, {})),
    "pruned_heads": Only((None, {})),
    "quantization_config": Only((None,)),
    "tie_encoder_decoder": Only((False,)),
    "torch_dtype": Used(),
}
DECODING: dict[str, Key] = {  # of encoders, which transformers can also make decoders of
    "add_cross_attention": Only((False,)),
    "cross_attention_hidden_size": Only((None,)),
    "is_decoder": Only((False,)),
}
