"""Layers: plain pytrees whose first values follow from a key, and which compute what their functions do."""

from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import nn, random, tree
from mesh.errors import InputError, ShapeError

KEY = random.key(3)
RANDOM = np.random.default_rng(8)


def values(array: Any) -> Any:
    return np.asarray(array)


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def close(found: Any, expected: Any, atol: float = 2e-6) -> None:
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(values(found), values(expected), rtol=2e-5, atol=atol)


LAYERS: list[tuple[str, Any, tuple[int, ...], tuple[int, ...]]] = [  # name, layer, x, result
    ("linear", nn.Linear.init(KEY, 6, 4), (2, 3, 6), (2, 3, 4)),
    ("linear without bias", nn.Linear.init(KEY, 6, 4, bias=False), (6,), (4,)),
    ("conv", nn.Conv.init(KEY, 4, 6, (3, 3), padding="same", groups=2), (2, 4, 5, 7), (2, 6, 5, 7)),
    ("conv transpose", nn.ConvTranspose.init(KEY, 4, 6, (2,), stride=2, groups=2), (2, 4, 5), (2, 6, 10)),
    ("layer norm", nn.LayerNorm.init(6), (2, 6), (2, 6)),
    ("rms norm", nn.RMSNorm.init(6), (2, 6), (2, 6)),
    ("group norm", nn.GroupNorm.init(6, 3), (2, 6, 4), (2, 6, 4)),
    ("mlp", nn.MLP.init(KEY, 6, 12), (2, 6), (2, 6)),
    ("gated mlp", nn.GatedMLP.init(KEY, 6, 12), (2, 6), (2, 6)),
    ("attention", nn.Attention.init(KEY, 8, 4, kv_heads=2, rotary=1e4), (2, 5, 8), (2, 5, 8)),
    ("block", nn.TransformerBlock.init(KEY, 8, 2, causal=True, norm=nn.RMSNorm, mlp=nn.GatedMLP), (2, 5, 8), (2, 5, 8)),
]


@pytest.mark.parametrize(("layer", "given", "wanted"), [row[1:] for row in LAYERS], ids=[row[0] for row in LAYERS])
def test_a_layer_is_a_tree_that_computes_traced_what_it_does_called(layer: Any, given: Any, wanted: Any) -> None:
    leaves, structure = tree.flatten(layer)
    assert all(array.dtype == np.float32 for array in leaves)
    x, same = normal(*given), tree.unflatten(structure, [values(leaf) for leaf in leaves])
    assert layer(x).shape == wanted
    close(mesh.evaluate(lambda layer, x: layer(x), same, x), layer(x))


def test_first_values_follow_from_the_key_and_have_the_variance_asked_for() -> None:
    weight = values(nn.Linear.init(KEY, 400, 300).weight)
    assert np.array_equal(weight, values(nn.Linear.init(random.key(3), 400, 300).weight))
    assert not np.array_equal(weight, values(nn.Linear.init(random.key(4), 400, 300).weight))
    assert abs(weight.std() * 20 - 1) < 0.01 and abs(weight.mean()) < 0.001
    kernels = (64, 16, 3, 3)
    for name, expected in (
        ("lecun_normal", 1 / 144), ("he_normal", 2 / 144), ("glorot_normal", 2 / (144 + 576)),
        ("lecun_uniform", 1 / 144), ("he_uniform", 2 / 144), ("glorot_uniform", 2 / (144 + 576)),
    ):  # fmt: skip
        found = values(getattr(nn.initialisers, name)(KEY, kernels))
        assert found.shape == kernels and abs(found.var() / expected - 1) < 0.05, name
    assert np.abs(values(nn.initialisers.truncated_normal(0.1)(KEY, (1000,)))).max() <= 0.2
    with pytest.raises(ShapeError, match="two axes"):
        nn.initialisers.he_normal(KEY, (3,))


@pytest.mark.parametrize("shape", [(7, 20), (20, 7), (16, 16), (6, 2, 3)])
def test_orthogonal_matrices_are(shape: tuple[int, ...]) -> None:
    found = values(nn.initialisers.orthogonal(2.0)(KEY, shape)).reshape(shape[0], -1).astype(np.float64)
    few = found if found.shape[0] <= found.shape[1] else found.T
    np.testing.assert_allclose(few @ few.T, 4 * np.eye(few.shape[0]), atol=1e-5)


def test_batch_norm_gives_its_statistics_back() -> None:
    layer, state = nn.BatchNorm.init(3, momentum=0.25), nn.BatchStatistics.init(3)
    x = 2 + 3 * normal(10, 3, 4)
    found, state = layer.train(x, state)
    close(mnp.mean(found, (0, 2)), np.zeros(3), atol=1e-5)
    close(mnp.var(found, (0, 2)), np.ones(3), atol=1e-4)
    close(state.mean, 0.25 * x.mean((0, 2)))
    close(state.variance, 0.75 + 0.25 * x.var((0, 2), ddof=1))
    shaped = [values(each).reshape(3, 1) for each in (state.mean, state.variance)]
    close(layer(x, state), (x - shaped[0]) / np.sqrt(shaped[1] + 1e-5))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("of_statistics", ["float32", "the same"])
def test_batch_norm_of_halves_is_rounded_once(dtype: str, of_statistics: str) -> None:
    x = mnp.astype(mnp.asarray(500 + 30 * normal(10, 3, 4)), dtype)
    given = [mnp.astype(mnp.asarray(np.float32(each)), dtype if of_statistics == "the same" else of_statistics)
             for each in ([500, 480, 510], [900, 1e-6, 800], [1.5, 0.5, 2], [0.1, -1, 3])]  # fmt: skip
    mean, variance, weight, bias = (mnp.astype(each, "float64").reshape(3, 1) for each in given)
    exact = (mnp.astype(x, "float64") - mean) / mnp.sqrt(variance + 1e-5) * weight + bias
    found = nn.batch_norm(x, *given)
    assert found.dtype == x.dtype
    unit = 2.0**-11 if dtype == "float16" else 2.0**-8
    np.testing.assert_allclose(values(mnp.astype(found, "float64")), values(exact), rtol=1.01 * unit, atol=1e-7)


def test_a_batch_norm_that_is_trained_keeps_the_dtypes_of_halves() -> None:
    layer, state = nn.BatchNorm.init(3, dtype="float16"), nn.BatchStatistics.init(3)
    halves = tree.map(lambda each: mnp.astype(each, "float16"), state)
    x = mnp.astype(mnp.asarray(500 + 30 * normal(10, 3, 4)), "float16")
    for before in (state, halves):
        found, after = layer.train(x, before)
        assert found.dtype == np.float16 and after.mean.dtype == before.mean.dtype
        assert np.abs(values(mnp.mean(found, (0, 2)))).max() < 1e-2


def test_dropout_needs_a_key_and_keeps_the_mean() -> None:
    x = np.ones((100, 100), np.float32)
    layer = nn.Dropout(0.3)
    assert np.array_equal(values(layer(x)), x)
    dropped = values(layer(x, KEY))
    assert np.array_equal(dropped, values(layer(x, KEY)))
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1) / np.float32(0.7)}
    assert abs(dropped.mean() - 1) < 0.02
    assert not values(nn.dropout(x, 1.0, KEY)).any()
    with pytest.raises(InputError, match="rate"):
        nn.dropout(x, 1.5, KEY)


def test_rotary_turns_pairs_as_complex_numbers() -> None:
    x, at = normal(2, 5, 6), np.arange(3, 8)
    angles = at[:, None] * 100.0 ** (-np.arange(3) / 3)
    turned = (x[..., :3] + 1j * x[..., 3:]) * np.exp(1j * angles)
    close(nn.rotary(x, at, base=100.0), np.concatenate([turned.real, turned.imag], -1))
    pairs = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
    close(nn.rotary(x, at, base=100.0, interleaved=True), np.stack([pairs.real, pairs.imag], -1).reshape(x.shape))
    with pytest.raises(ShapeError, match="even"):
        nn.rotary(normal(2, 5), np.arange(2))


def test_heads_that_share_keys_are_heads_with_keys_repeated() -> None:
    layer, x = nn.Attention.init(KEY, 12, 6, kv_heads=2, size=4), normal(3, 5, 12)
    rows = [
        values(each).reshape(2, 4, -1).repeat(3, 0).reshape(24, -1) for each in (layer.key.weight, layer.value.weight)
    ]
    full = nn.Attention(
        layer.query, nn.Linear(rows[0], np.zeros(24, np.float32)), nn.Linear(rows[1], np.zeros(24, np.float32)),
        layer.output, heads=6,
    )  # fmt: skip
    close(layer(x), full(x))
    mask = RANDOM.random((3, 6, 5, 5)) > 0.3
    close(layer(x, mask), full(x, mask))
    close(layer(x, mask[:, :1]), full(x, mask[:, :1]))
    close(layer(x, None, x[:, :2]), full(x, None, x[:, :2]))


@pytest.mark.parametrize("rotary", [None, 100.0])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_steps_with_a_cache_are_the_whole_at_once(kv_heads: int, rotary: float | None) -> None:
    block = nn.TransformerBlock.init(KEY, 8, 4, kv_heads=kv_heads, causal=True, rotary=rotary, norm=nn.RMSNorm)
    x = normal(2, 7, 8)
    whole = values(block(x))
    cache, parts = nn.KVCache.init((2,), kv_heads, 9, 2), []
    for start, stop in ((0, 3), (3, 4), (4, 5), (5, 7)):
        part, cache = block.step(x[:, start:stop], cache)
        parts.append(values(part))
    close(np.concatenate(parts, 1), whole, atol=1e-5)
    assert int(mnp.asarray(cache.used)) == 7 and not values(cache.key)[..., 7:, :].any()


def test_a_traced_step_is_one_graph_whatever_is_used() -> None:
    layer = nn.Attention.init(KEY, 8, 2, causal=True)
    caches = [nn.KVCache(normal(2, 6, 4), normal(2, 6, 4), np.int32(used)) for used in (1, 4)]
    x = normal(1, 8)
    graphs = {mesh.trace(lambda x, cache: layer.step(x, cache), x, cache).hash for cache in caches}
    assert len(graphs) == 1


def test_a_decoder_attends_to_its_context_and_drops_out_with_a_key() -> None:
    block = nn.TransformerBlock.init(KEY, 8, 2, causal=True, cross=True, pre_norm=False, dropout=0.5)
    x, context = normal(2, 5, 8), normal(2, 3, 8)
    plain = values(block(x, None, context))
    assert not np.allclose(plain, values(block(x, None, 2 * context)))
    hidden = np.array([True, True, False])
    close(block(x, None, context, hidden), block(x, None, context[:, :2]), atol=1e-5)
    assert np.array_equal(values(block(x, None, context, key=KEY)), values(block(x, None, context, key=KEY)))
    assert not np.allclose(plain, values(block(x, None, context, key=KEY)))
    later = np.concatenate([x[:, :3], normal(2, 2, 8)], 1)
    close(block(later, None, context)[:, :3], plain[:, :3])


def test_a_mask_that_is_added_joins_the_causal_one() -> None:
    layer, x = nn.Attention.init(KEY, 8, 2, causal=True), normal(2, 4, 8)
    bias = np.array([0, -1e9, 0, 0], np.float32)
    close(layer(x, bias), layer(x, bias > -1), atol=1e-5)
    with pytest.raises(ShapeError, match="share"):
        nn.Attention.init(KEY, 8, 4, kv_heads=3)


def test_a_class_and_a_row_that_are_not_there_are_named_where_they_are_known() -> None:
    scores, table = normal(3, 5), normal(5, 2)
    for wrong in ([0, 5, 1], [0, -1, 1]):
        with pytest.raises(InputError, match=f"a label is {wrong[1]}, and there are 5"):
            nn.cross_entropy(scores, np.array(wrong))
        with pytest.raises(InputError, match=f"an index is {wrong[1]}, and there are 5"):
            nn.embedding(np.array(wrong), table)
    assert np.isfinite(values(nn.cross_entropy(scores, np.array([0, -100, 1]), ignore_index=-100)))


def test_heads_that_do_not_split_the_width_are_refused() -> None:
    with pytest.raises(ShapeError, match="a width of 8 does not split into 3 heads"):
        nn.Attention.init(KEY, 8, 3)
    assert nn.Attention.init(KEY, 8, 3, size=4)(normal(2, 5, 8)).shape == (2, 5, 8)
