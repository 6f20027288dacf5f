"""mesh.nn against formulas written independently in numpy, in float64."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import nn, tree
from mesh.errors import DTypeError, ShapeError

RANDOM = np.random.default_rng(11)
X = RANDOM.standard_normal((2, 5, 8)).astype(np.float32)
TABLE = RANDOM.standard_normal((10, 8)).astype(np.float32)
ERF = np.vectorize(math.erf)


def random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    grown = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    return grown / grown.sum(axis, keepdims=True)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + ERF(x.astype(np.float64) / math.sqrt(2)))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    wide = x.astype(np.float64)
    return (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + eps) * weight + bias


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Any = None, scale: float | None = None) -> np.ndarray:
    scores = np.einsum("...qd,...kd->...qk", q, k).astype(np.float64) * (scale or 1 / math.sqrt(q.shape[-1]))
    if mask is not None:
        scores = np.where(mask, scores, -1e30) if mask.dtype == bool else scores + mask
    return softmax(scores) @ v


def close(found: Any, expected: Any, rtol: float = 1e-5, atol: float = 2e-6) -> None:
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=rtol, atol=atol)


ACTIVATIONS = [
    (nn.relu, lambda x: np.maximum(x, 0)),
    (nn.silu, lambda x: x / (1 + np.exp(-x.astype(np.float64)))),
    (nn.gelu, gelu),
    (lambda x: nn.gelu(x, approximate=True), gelu_tanh),
    (nn.softmax, softmax),
    (lambda x: nn.softmax(x, axis=0), lambda x: softmax(x, 0)),
    (nn.log_softmax, lambda x: np.log(softmax(x))),
]


@pytest.mark.parametrize(("mine", "theirs"), ACTIVATIONS)
def test_activations(mine: Any, theirs: Any) -> None:
    for x in (X, 10 * X, X[0, 0]):
        close(mine(x), theirs(x))
        assert mine(x).dtype == np.float32


def test_softmax_of_huge_numbers_is_finite() -> None:
    close(nn.softmax(np.array([1e30, 1e30, -1e30], np.float32)), [0.5, 0.5, 0])
    assert np.isfinite(np.asarray(nn.log_softmax(np.array([1e4, 0], np.float32)))).all()


def test_half_precision_stays_half_precision() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = X.astype(dtype)
        for result in (nn.gelu(x), nn.softmax(x), nn.layer_norm(x, np.ones(8, dtype), np.zeros(8, dtype))):
            assert result.dtype == x.dtype
        close(nn.softmax(x).astype("float32"), softmax(X), rtol=0.1, atol=0.01)


def test_linear_has_torchs_layout() -> None:
    weight, bias = random(3, 8), random(3)
    close(nn.linear(X, weight, bias), X @ weight.T + bias)
    close(nn.linear(X[0, 0], weight), X[0, 0] @ weight.T)
    graph = mesh.trace(nn.linear, X, weight, bias)
    assert [node.op for node in graph] == ["input", "input", "input", "dot", "add"], "no transpose is needed"
    with pytest.raises(
        ShapeError, match=r"linear needs x \(..., in\) and weight \(out, in\), got \(2, 5, 8\) and \(8, 3\)"
    ):
        nn.linear(X, weight.T)


def test_embedding_picks_rows() -> None:
    ids = np.array([[1, 9], [0, 3]], np.int64)
    close(nn.embedding(ids, TABLE), TABLE[ids])
    close(mesh.evaluate(nn.embedding, ids, TABLE), TABLE[ids])
    with pytest.raises(DTypeError, match="integer indices"):
        nn.embedding(X, TABLE)
    with pytest.raises(ShapeError, match="embedding table"):
        nn.embedding(ids, X)


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.1])
def test_layer_norm(eps: float) -> None:
    weight, bias = random(8), random(8)
    close(nn.layer_norm(X, weight, bias, eps=eps), layer_norm(X, weight, bias, eps), rtol=1e-4)
    with pytest.raises(ShapeError, match="layer_norm needs"):
        nn.layer_norm(X, weight[:4], bias)


MASKS = [
    None,
    np.array([True, True, False, True, False]),
    RANDOM.random((2, 1, 5, 5)) > 0.3,
    random(5, 5),
    np.zeros((2, 3, 5, 5), bool),
]


@pytest.mark.parametrize("mask", MASKS, ids=["none", "keys", "batch", "added", "all masked"])
def test_attention(mask: Any) -> None:
    q, k, v = random(2, 3, 5, 4), random(2, 3, 5, 4), random(2, 3, 5, 6)
    close(nn.scaled_dot_product_attention(q, k, v, mask), attention(q, k, v, mask))
    close(nn.scaled_dot_product_attention(q, k, v, mask, scale=0.3), attention(q, k, v, mask, 0.3))


def test_attention_of_half_precision_survives_masks() -> None:
    q = random(5, 4).astype(np.float16)
    found = np.asarray(nn.scaled_dot_product_attention(q, q, q, np.zeros((5, 5), bool)))
    close(found, np.broadcast_to(q.mean(0), (5, 4)), rtol=1e-2, atol=1e-2)


def test_attention_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match="attention needs query"):
        nn.scaled_dot_product_attention(random(5, 4), random(5, 3), random(5, 4))


def params(width: int) -> dict[str, dict[str, np.ndarray]]:
    return {
        name: {"weight": random(width, width), "bias": random(width)} for name in ("query", "key", "value", "output")
    }


def reference_multi_head(x: np.ndarray, layers: Any, heads: int, mask: Any = None, context: Any = None) -> np.ndarray:
    source = x if context is None else context

    def project(array: np.ndarray, name: str) -> np.ndarray:
        return array @ layers[name]["weight"].T + layers[name]["bias"]

    outs = []
    size = x.shape[-1] // heads
    for head in range(heads):
        cols = slice(head * size, (head + 1) * size)
        q, k, v = project(x, "query")[..., cols], project(source, "key")[..., cols], project(source, "value")[..., cols]
        outs.append(attention(q, k, v, None if mask is None else mask))
    return np.concatenate(outs, -1) @ layers["output"]["weight"].T + layers["output"]["bias"]


def layer_of(weights: dict[str, dict[str, np.ndarray]], heads: int) -> nn.Attention:
    return nn.Attention(**{name: nn.Linear(**each) for name, each in weights.items()}, heads=heads)


def test_attention_of_several_heads() -> None:
    weights = params(8)
    keys = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    close(layer_of(weights, 2)(X), reference_multi_head(X, weights, 2), rtol=1e-4, atol=1e-5)
    close(
        layer_of(weights, 4)(X, keys[:, None, None, :]),
        reference_multi_head(X, weights, 4, keys[:, None, :]),
        rtol=1e-4,
        atol=1e-5,
    )
    context = random(2, 3, 8)
    close(
        layer_of(weights, 2)(X, context=context),
        reference_multi_head(X, weights, 2, context=context),
        rtol=1e-4,
        atol=1e-5,
    )
    with pytest.raises(ShapeError, match="does not split into 3 heads"):
        layer_of(weights, 3)(X)


def test_layers_are_trees_that_can_be_called_and_traced() -> None:
    weights = params(8)
    layer = layer_of(weights, 2)
    norm, table, ids = nn.LayerNorm(random(8), random(8), eps=1e-12), nn.Embedding(TABLE), np.array([[1, 2, 3]])
    close(layer(X), reference_multi_head(X, weights, 2), rtol=1e-4, atol=1e-5)
    model = {"attention": layer, "norm": norm, "table": table}
    found = mesh.evaluate(lambda m, ids: m["norm"](m["attention"](m["table"](ids))), model, ids)
    expected = layer_norm(reference_multi_head(TABLE[ids], weights, 2), norm.weight, norm.bias, 1e-12)  # type: ignore[arg-type]
    close(found, expected, rtol=1e-3, atol=1e-4)
    names = [path for path, _ in tree.flatten_with_paths(model)[0]]
    assert names[:2] == ["attention/query/weight", "attention/query/bias"]
    assert "norm/eps" not in names
    assert tree.map(lambda leaf: leaf, layer).heads == 2


COMPOSITES = [
    (nn.softmax, (X,), "softmax", {"axis": 2}),
    (nn.log_softmax, (X,), "log_softmax", {"axis": 2}),
    (nn.gelu, (X,), "gelu", {}),
    (lambda x: nn.gelu(x, approximate=True), (X,), "gelu_tanh", {}),
    (nn.layer_norm, (X, X[0, 0], X[0, 0]), "layer_norm", {"axis": 2, "eps": 1e-5}),
    (nn.scaled_dot_product_attention, (X, X, X), "attention", {"scale": 1 / math.sqrt(8)}),
    (nn.scaled_dot_product_attention, (X, X, X, X[0, :, :5] > 0), "attention", {"scale": 1 / math.sqrt(8)}),
]


@pytest.mark.parametrize(("fn", "args", "name", "attrs"), COMPOSITES)
def test_these_are_composites_whose_bodies_hold_only_ops_of_the_table(
    fn: Any, args: Any, name: str, attrs: Any
) -> None:
    graph = mesh.trace(fn, *args)
    node = graph.nodes[graph.outputs[0]]
    assert node.op == "composite"
    assert node.attrs["name"] == name
    assert {key: node.attrs[key] for key in ("axis", "eps", "scale") if key in node.attrs} == attrs
    assert all(inner.op != "composite" for inner in node.attrs["body"]), "bodies are flat"


def test_gelu_of_integers_is_float32() -> None:
    assert nn.gelu(mnp.asarray([1, 2])).dtype == np.float32


ROUNDED_ONCE = {
    "gelu": nn.gelu, "gelu_tanh": lambda x: nn.gelu(x, approximate=True), "silu": nn.silu, "mish": nn.mish,
    "sigmoid": nn.sigmoid, "softplus": nn.softplus, "log_sigmoid": nn.log_sigmoid, "elu": nn.elu,
    "softsign": nn.softsign, "softmax": nn.softmax, "log_softmax": nn.log_softmax,
    "layer_norm": lambda x: nn.layer_norm(x, x[0, 0], x[0, 1]),
    "rms_norm": lambda x: nn.rms_norm(x, mnp.ones_like(x[0, 0])),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ROUNDED_ONCE)
def test_narrow_floats_are_computed_in_float32_and_rounded_once(name: str, dtype: Any) -> None:
    function, x = ROUNDED_ONCE[name], mnp.asarray((3 * X).astype(dtype))
    found = function(x)
    assert found.dtype == dtype
    wanted = np.asarray(function(mnp.astype(x, mnp.float32))).astype(dtype)
    assert np.array_equal(np.asarray(found), wanted)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_attention_weighs_in_float32(dtype: Any) -> None:
    """What torch's scaled_dot_product_attention does: the weights are those of exact scores, rounded once."""
    q, k, v = (mnp.asarray(random(2, 6, 8).astype(dtype)) for _ in range(3))
    scores = mnp.astype(q, mnp.float32) @ mnp.astype(k, mnp.float32).mT * 8**-0.5
    wanted = mnp.astype(nn.softmax(scores), q.dtype) @ v
    assert np.array_equal(np.asarray(nn.scaled_dot_product_attention(q, k, v)), np.asarray(wanted))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_attention_tells_keys_apart_that_are_nearly_alike(dtype: Any) -> None:
    """Scores were rounded to the dtype before they were scaled: all keys of this had one weight in bfloat16, and the
    products of larger numbers were infinite in float16, so that no weight was a number."""
    q = (random(1, 64) * 3).astype(dtype)
    k = (q.astype(np.float64) + random(4, 64) * 0.02).astype(dtype)
    found = np.asarray(nn.scaled_dot_product_attention(q, k, np.eye(4, dtype=dtype))).astype(np.float64)
    exact = softmax(q.astype(np.float64) @ k.astype(np.float64).T / 8)
    np.testing.assert_allclose(found, exact, rtol=2**-8 if dtype is not np.float16 else 2**-10)
    large = np.full((2, 128), 30, dtype)
    np.testing.assert_array_equal(np.asarray(nn.scaled_dot_product_attention(large, large, large)), large)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_mean_of_losses_that_count_has_room_for_their_sum(dtype: Any) -> None:
    """The sum of more than 65,504 was infinite in float16, and 70,001 labels were 70,144 in bfloat16."""
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal((70_001, 4)) * 8).astype(dtype)
    labels = rng.integers(0, 4, 70_001)
    labels[::7] = -1
    exact = -np.log(softmax(logits.astype(np.float64)))[np.arange(70_001), labels][labels >= 0].mean()
    loss, slope = mesh.value_and_grad(lambda x: nn.cross_entropy(x, labels, ignore_index=-1) * 1000)(logits)
    np.testing.assert_allclose(float(loss) / 1000, exact, rtol=2e-2 if dtype is not np.float16 else 2e-3)
    wanted = (softmax(logits[1].astype(np.float64)) - np.eye(4)[labels[1]]) * 1000 / (labels >= 0).sum()
    np.testing.assert_allclose(np.asarray(slope)[1].astype(np.float64), wanted, rtol=2e-2, atol=1e-4)
    assert not np.asarray(slope)[0].any()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["mse", "mae", "huber", "binary_cross_entropy", "kl_divergence"])
def test_losses_of_narrow_floats_are_computed_in_float32_and_rounded_once(name: str, dtype: Any) -> None:
    """An error of 300 among small ones made the mean infinite in float16, where it is 90."""
    loss, x, y = getattr(nn, name), random(1000).astype(dtype), np.abs(random(1000)).astype(dtype)
    x[3], y[3] = (300, 0) if name != "kl_divergence" else (-300, 250)
    for reduction in ("mean", "none"):
        found = np.asarray(loss(x, y, reduction=reduction))
        assert found.dtype == dtype
        wanted = np.asarray(loss(x.astype(np.float32), y.astype(np.float32), reduction=reduction))
        with np.errstate(over="ignore"):  # that of the large error alone
            wanted = wanted.astype(dtype)
        np.testing.assert_array_equal(found, wanted)
    assert np.isfinite(float(loss(x, y)))
