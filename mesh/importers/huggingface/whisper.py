"""The encoder of Whisper: what is heard, as mel spectra, to a state for every two frames.

Radford et al., 2022 (arXiv 2212.04356).
"""

from __future__ import annotations

from collections.abc import Mapping

from wire.errors import InputError
from wire.ir.dtypes import F32

from ... import nn
from ... import numpy as mnp
from ...core.array import Array
from ...models.model import InputSpec, Value
from .config import Config
from .family import Family, Kind, prefix_of
from .keys import COMMON, TRAINING, Key, Same, Used
from .tower import Tower, tower_layer
from .weights import Arrays, Weights

EPS = 1e-5
FRAMES_PER_STATE = 2


def whisper(config: Config, weights: Arrays) -> Family:
    """The encoder."""
    layers, heads = config.integer("encoder_layers"), config.heads("encoder_attention_heads", "d_model")
    sizes = config.sizes("d_model", "encoder_ffn_dim", "num_mel_bins", "max_source_positions")
    tower = Tower(
        heads, "d_model", "encoder_ffn_dim", EPS, config.activation("activation_function"),
        ("self_attn_layer_norm", "final_layer_norm"), ("fc1", "fc2"), key_bias=False,
    )  # fmt: skip
    prefix = prefix_of(weights, config, "conv1.weight", "model.encoder.", "encoder.")
    frames = FRAMES_PER_STATE * sizes["max_source_positions"]

    def function(params: Mapping[str, Array], inputs: Mapping[str, Value]) -> dict[str, Array]:
        own, heard = Weights(params, sizes, prefix), mnp.asarray(inputs["input_features"])
        if heard.shape[-1] != frames:
            raise InputError(
                f"this model hears {frames} frames, got {heard.shape[-1]}",
                next_step=f"Pad the features to {frames} frames, as WhisperFeatureExtractor does",
            )
        x = mnp.astype(heard, own("conv1.weight", "d_model", "num_mel_bins", 3).dtype)
        for name, channels, stride in (("conv1", "num_mel_bins", 1), ("conv2", "d_model", FRAMES_PER_STATE)):
            kernel, bias = own(f"{name}.weight", "d_model", channels, 3), own(f"{name}.bias", "d_model")
            x = nn.gelu(nn.conv(x, kernel, bias, stride=stride, padding=1))
        x = x.mT + own("embed_positions.weight", "max_source_positions", "d_model")
        for number in range(layers):
            x = tower_layer(tower, own.at(f"layers.{number}"), x)
        return {"last_hidden_state": own.layer_norm("layer_norm", x, EPS)}

    spec = InputSpec("input_features", F32, ("batch", sizes["num_mel_bins"], frames))
    return Family((spec,), ("last_hidden_state",), function)


DECODER = Same("only the decoder reads it, which is not loaded")
CLASSIFIER = Same("only the head of WhisperForAudioClassification reads it")
KEYS: dict[str, Key] = {
    **COMMON,
    "activation_dropout": TRAINING,
    "activation_function": Used("gelu"),
    "apply_spec_augment": TRAINING,
    "attention_dropout": TRAINING,
    "classifier_proj_size": CLASSIFIER,
    "d_model": Used(384),
    "decoder_attention_heads": DECODER,
    "decoder_ffn_dim": DECODER,
    "decoder_layerdrop": DECODER,
    "decoder_layers": DECODER,
    "dropout": TRAINING,
    "encoder_attention_heads": Used(6),
    "encoder_ffn_dim": Used(1536),
    "encoder_layerdrop": TRAINING,
    "encoder_layers": Used(4),
    "eos_token_id": Used(50256),
    "init_std": Same("weights are drawn by it, and then read from the files"),
    "is_encoder_decoder": DECODER,
    "mask_feature_length": TRAINING,
    "mask_feature_min_masks": TRAINING,
    "mask_feature_prob": TRAINING,
    "mask_time_length": TRAINING,
    "mask_time_min_masks": TRAINING,
    "mask_time_prob": TRAINING,
    "max_source_positions": Used(1500),
    "max_target_positions": DECODER,
    "median_filter_width": DECODER,
    "num_hidden_layers": Same("it repeats `encoder_layers`, which is the one that is read"),
    "num_mel_bins": Used(80),
    "scale_embedding": DECODER,
    "tie_word_embeddings": DECODER,
    "use_weighted_layer_sum": CLASSIFIER,
    "vocab_size": DECODER,
}
WHISPER = Kind(
    KEYS, ("WhisperModel", "WhisperForConditionalGeneration"), whisper,
    dropped={r"^(model\.)?decoder\.": "the decoder", r"^proj_out\.weight$": "the head of the decoder"},
)  # fmt: skip
