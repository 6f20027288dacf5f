"""Rotary positions: how far each pair of a head is turned per position.  Su et al., 2021 (arXiv 2104.09864).

A scaling is a row of SCALINGS: the settings that it takes, and what it makes of the plain rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from sys import float_info
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError

from ... import numpy as mnp
from ...core.array import Array
from .config import Config

Rates = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rotary:
    """Radians per position of each pair, f32 (pairs,), and the factor of cosines and sines.

    Texts of more than `original` tokens are turned by `long` instead.
    """

    rates: NDArray[np.float32]
    factor: float = 1.0
    long: NDArray[np.float32] | None = None
    original: int | None = None


@dataclass(frozen=True, slots=True)
class Scaling:
    """The settings of a kind by what they are, with those that may be left out, and what it makes of the rates."""

    needed: Mapping[str, Callable[[Any, int], bool]]
    made: Callable[[Rates, Mapping[str, Any]], Rotary]
    optional: Mapping[str, Callable[[Any, int], bool]]


def rotary_of(
    config: Config, size: int, partial: str | None, kind: str, theta: str, scaled: bool,
    scalings: Collection[str], otherwise: Mapping[str, Any] | None = None,
) -> Rotary:  # fmt: skip
    """The turns of layers of this kind, for heads of this size.

    `theta` is the key of the base, `partial` that of the part of a head that is turned, None where all of it is;
    `scaled` says whether `rope_scaling` is meant for these layers, `scalings` which kinds are known, and `otherwise` is
    used where the file has neither.
    """
    key, scaling = "rope_scaling", config["rope_scaling"] if scaled else None
    if not scaling:
        key, scaling = "rope_parameters", config["rope_parameters"] or otherwise or {}
    if isinstance(scaling, Mapping) and kind in scaling:
        key, scaling = f"{key}.{kind}", scaling[kind] or {}
    elif isinstance(scaling, Mapping) and not scaled:
        scaling = {}
    if not isinstance(scaling, Mapping):
        raise InputError(f"{config.file}: {key} is an object, got {scaling!r:.60}")
    name = scaling.get("rope_type", scaling.get("type", "default"))
    if "long_factor" in scaling and name in ("su", "yarn"):  # as older files of Phi 3 call it
        name = "longrope"
    if not isinstance(name, str) or name not in scalings:
        raise config.unknown(f"{key}.rope_type", name, scalings)
    row = SCALINGS[name]
    also = () if partial is None else ("partial_rotary_factor",)
    strange = sorted(scaling.keys() - {"rope_type", "type", "rope_theta", *row.needed, *row.optional, *also})
    if strange:
        known = [f"{', '.join([*row.needed, *row.optional, *also]) or 'none'} of rope_type {name!r}"]
        raise config.unknown(f"{key}.{strange[0]}", scaling[strange[0]], known)
    settings: dict[str, Any] = {"rope_theta": config[theta], **scaling}
    if "original_max_position_embeddings" in row.needed:
        settings.setdefault("original_max_position_embeddings", config.integer("max_position_embeddings"))
    if config.knows("original_max_position_embeddings"):  # which is the stronger one
        settings["original_max_position_embeddings"] = config.integer("original_max_position_embeddings")
    part = 1.0 if partial is None else settings.get("partial_rotary_factor", config[partial])
    if not _is_positive(part, 0) or part > 1:
        raise InputError(f"{config.file}: {partial} is a number above 0 and at most 1, got {part!r}")
    turned = int(size * part)
    for setting, fits in {"rope_theta": _is_positive, **row.needed, **row.optional}.items():
        value = settings.get(setting)
        if not (fits(value, turned // 2) or (value is None and setting in row.optional)):
            what = WHAT[fits].format(turned // 2)
            raise InputError(f"{config.file}: {key}.{setting} is {what}, got {value!r:.60}")
    settings["max_position_embeddings"] = config.integer("max_position_embeddings")
    rates = float(settings["rope_theta"]) ** -(np.arange(0, turned, 2) / turned)
    try:
        return row.made(rates, settings)
    except (ArithmeticError, ValueError) as error:
        raise InputError(f"{config.file}: no positions follow from {key}", cause=str(error)) from None


def rotary_tables(positions: Array, rotary: Rotary) -> tuple[Array, Array]:
    """Cosines and sines of positions (batch, n), each f32 (batch, 1, n, size): alike for all heads."""
    rates = mnp.asarray(rotary.rates)
    if rotary.long is not None and rotary.original is not None:
        far = mnp.max(positions, axis=1, keepdims=True) >= rotary.original
        rates = mnp.where(far, mnp.asarray(rotary.long), rates)[:, None, None, :]
    angles = mnp.astype(positions, mnp.float32)[:, None, :, None] * rates
    both_halves = mnp.concat([angles, angles], axis=-1)
    cos, sin = mnp.cos(both_halves), mnp.sin(both_halves)
    return (cos, sin) if rotary.factor == 1.0 else (cos * rotary.factor, sin * rotary.factor)


def rotated(x: Array, turned: tuple[Array, Array]) -> Array:
    """x (..., length, size) with each pair (i, i + half) turned by its position's angle.

    Where the tables are narrower than a head, only so much of it is turned.
    """
    cos, sin = (mnp.astype(table, x.dtype) for table in turned)
    size = cos.shape[-1]
    half, rest = size // 2, x[..., size:] if size < x.shape[-1] else None
    x = x if rest is None else x[..., :size]
    y = x * cos + mnp.concat([-x[..., half:], x[..., :half]], axis=-1) * sin
    return y if rest is None else mnp.concat([y, rest], axis=-1)


# -- scalings


def _narrow(rates: Rates, factor: float = 1.0) -> Rotary:
    return Rotary(np.asarray(rates, np.float32), factor)


def _llama3(rates: Rates, given: Mapping[str, Any]) -> Rotary:
    """Slow pairs are slowed by `factor`, quick ones stay, those between are mixed."""
    waves = 2 * math.pi / rates
    low, high = given["low_freq_factor"], given["high_freq_factor"]
    if low >= high:
        raise ValueError(f"low_freq_factor = {low!r} is not below high_freq_factor = {high!r}")
    mix = np.clip((given["original_max_position_embeddings"] / waves - low) / (high - low), 0, 1)
    return _narrow((1 - mix) * rates / given["factor"] + mix * rates)


def _yarn(rates: Rates, given: Mapping[str, Any]) -> Rotary:
    """Pairs by how often they turn over the original length.  Peng et al., 2023 (arXiv 2309.00071)."""
    size, original = 2 * len(rates), given["original_max_position_embeddings"]
    factor = given.get("factor") or given["max_position_embeddings"] / original
    bounds = [
        size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(given["rope_theta"]))
        for turns in (given.get("beta_fast") or 32, given.get("beta_slow") or 1)
    ]
    low, high = (math.floor(bounds[0]), math.ceil(bounds[1])) if given.get("truncate", True) else bounds
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / ((high - low) or 0.001), 0, 1)
    strength = given.get("attention_factor")
    if strength is None:
        scales = given.get("mscale"), given.get("mscale_all_dim")
        strength = _mscale(factor, scales[0]) / _mscale(factor, scales[1]) if all(scales) else _mscale(factor, 1)
    return _narrow(rates / factor * ramp + rates * (1 - ramp), float(strength))


def _mscale(factor: float, scale: Any) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _longrope(rates: Rates, given: Mapping[str, Any]) -> Rotary:
    """A factor per pair, and other ones for long texts.  Ding et al., 2024 (arXiv 2402.13753)."""
    original = given["original_max_position_embeddings"]
    factor = given.get("factor") or given["max_position_embeddings"] / original
    strength = given.get("attention_factor")
    if strength is None:
        strength = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    short, long = (np.asarray(rates / np.asarray(given[name]), np.float32) for name in ("short_factor", "long_factor"))
    return Rotary(short, float(strength), long, int(original))


def _is_positive(value: Any, pairs: int) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= float_info.max


def _is_above_one(value: Any, pairs: int) -> bool:
    return _is_positive(value, pairs) and bool(value > 1)


def _are_positive(value: Any, pairs: int) -> bool:
    return isinstance(value, list) and len(value) == pairs and all(_is_positive(each, pairs) for each in value)


def _is_flag(value: Any, pairs: int) -> bool:
    return isinstance(value, bool)


WHAT: dict[Callable[[Any, int], bool], str] = {
    _is_positive: "a positive number",
    _is_above_one: "a number above 1",
    _are_positive: "a list of {} positive numbers",
    _is_flag: "true or false",
}
ORIGINAL = {"original_max_position_embeddings": _is_positive}
SCALINGS: dict[str, Scaling] = {
    "default": Scaling({}, lambda rates, given: _narrow(rates), {}),
    "linear": Scaling({"factor": _is_positive}, lambda rates, given: _narrow(rates / given["factor"]), {}),
    "llama3": Scaling(
        {"factor": _is_positive, "low_freq_factor": _is_positive, "high_freq_factor": _is_positive, **ORIGINAL},
        _llama3,
        {},
    ),
    "longrope": Scaling(
        {"short_factor": _are_positive, "long_factor": _are_positive, **dict.fromkeys(ORIGINAL, _is_above_one)},
        _longrope,
        {"factor": _is_positive, "attention_factor": _is_positive},
    ),
    "yarn": Scaling(
        {"rope_theta": _is_above_one, **ORIGINAL},
        _yarn,
        {
            "factor": _is_positive, "attention_factor": _is_positive, "beta_fast": _is_positive,
            "beta_slow": _is_positive, "mscale": _is_positive, "mscale_all_dim": _is_positive, "truncate": _is_flag,
        },
    ),
}  # fmt: skip
