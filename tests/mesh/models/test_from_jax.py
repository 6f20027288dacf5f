"""mesh.from_jax: JAX functions, their gradients and training steps compute what JAX computes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mesh
import mesh.numpy as mnp
from mesh import Mesh
from mesh.errors import InputError, Unsupported

jax = pytest.importorskip("jax", reason="JAX is not installed (the extra `jax`)")
import jax.numpy as jnp  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 8)).astype(np.float32)
W = RNG.normal(size=(8, 3)).astype(np.float32)
I = RNG.integers(-20, 20, (4, 5)).astype(np.int32)  # noqa: E741
K = np.array([2, 0, -1, 9], np.int32)
IMAGE = RNG.normal(size=(2, 8, 8, 4)).astype(np.float32)
FILTERS = RNG.normal(size=(3, 3, 4, 6)).astype(np.float32)
KEY = np.array([0, 7], np.uint32)
Z = (RNG.normal(size=(2, 3)) + 1j * RNG.normal(size=(2, 3))).astype(np.complex64)
LAYOUT = ("NHWC", "HWIO", "NHWC")


def conv(x: Any, w: Any, *settings: Any, **more: Any) -> Any:
    return jax.lax.conv_general_dilated(x, w, *settings, dimension_numbers=LAYOUT, **more)


def pooled(x: Any, kind: str, window: int, stride: int, padding: str) -> Any:
    first, combine = {"max": (-jnp.inf, jax.lax.max), "sum": (0.0, jax.lax.add)}[kind]
    shape, strides = (1, window, window, 1), (1, stride, stride, 1)
    return jax.lax.reduce_window(x, first, combine, shape, strides, padding)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "elementwise": (
        lambda x: [
            jnp.sin(x), jnp.tan(x), jnp.sinh(x), jnp.arctan2(x, x + 1), jax.nn.sigmoid(x), jax.scipy.special.erf(x),
            jax.lax.rsqrt(abs(x)), jnp.cbrt(x), jnp.round(x), jnp.floor(x), jnp.ceil(x), jnp.sign(x),
            jnp.clip(x, -0.5, 0.5), jnp.power(abs(x), 1.5), x**3, x**-2, jnp.expm1(x), jnp.log1p(abs(x)),
            jax.scipy.special.gammaln(abs(x) + 0.1), jax.scipy.special.erfinv(jnp.tanh(x)), jnp.isfinite(x),
            jnp.nextafter(x, x + 1), jnp.float16(x), jnp.int32(x * 10), jnp.logaddexp(x, x + 1), jax.nn.gelu(x),
        ],
        (X,),
    ),
    "integers": (
        lambda i: [
            i // 3, i % 3, jax.lax.div(i, 3 * jnp.ones_like(i)), jax.lax.rem(i, 3 * jnp.ones_like(i)), i & 5, i | 5,
            i ^ 5, ~i, i << 2, i >> 1, jax.lax.shift_right_logical(i, jnp.ones_like(i)), abs(i), i**2,
            jnp.maximum(i, 0), i.astype(jnp.uint8), i.astype(bool),
        ],
        (I,),
    ),
    "reductions": (
        lambda x: [
            x.sum(0), x.max(1), x.min(), x.prod(0), x.argmax(1), x.argmin(0), (x > 0).any(0), (x > 0).all(1), x.mean(),
            x.var(0), jnp.cumsum(x, 1), jnp.cumprod(x, 0), jax.lax.cummax(x, 1), jax.lax.cummin(x, 0, reverse=True),
            jax.nn.logsumexp(x, 1), jnp.linalg.norm(x),
        ],
        (X,),
    ),
    "shapes": (
        lambda x: [
            x.T, x.reshape(2, 16), x[::-1], x[1:3, ::2], x[:, None], jnp.tile(x, (2, 1)), jnp.concatenate([x, x], 1),
            jnp.stack([x, x]), jnp.pad(x, ((1, 2), (0, 1)), constant_values=3.0), jnp.roll(x, 2, 1), jnp.split(x, 2, 1),
            jnp.repeat(x, 2, 0), jax.lax.pad(x, 0.0, ((-1, 2, 1), (1, -2, 0))), jnp.flip(x), jnp.tril(x), jnp.eye(3),
        ],
        (X,),
    ),
    "products": (
        lambda x, w: [
            x @ w, jnp.einsum("ij,jk->ki", x, w),
            jnp.einsum("bij,bjk->bik", x.reshape(2, 2, 8), jnp.stack([w, w])), jnp.tensordot(x, w, 1),
            jnp.dot(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), preferred_element_type=jnp.float32),
        ],
        (X, W),
    ),
    "gathers": (
        lambda x, k: [
            x[k], x[:, k], x[k, k], jnp.take(x, k, axis=1), jnp.take_along_axis(x, jnp.abs(k)[:, None] % 8, 1), x[k[0]],
            x[0, k], jax.lax.dynamic_slice(x, (k[0], k[2]), (2, 3)), x.at[k].get(mode="fill", fill_value=-7),
            x[jnp.array([0, 1])[:, None], jnp.array([3, 4, 5])[None]], jax.vmap(lambda r, i: r[i])(x, k),
            x.at[k].get(mode="clip"),
        ],
        (X, K),
    ),
    "scatters": (
        lambda x, k: [
            x.at[k].set(3.0), x.at[k].add(x), x.at[:, k].add(1.0), x.at[k, k].max(5.0), x.at[1].set(0.0),
            x.at[1:3, 2].add(2.0), jax.lax.dynamic_update_slice(x, jnp.ones((2, 2)), (k[0], k[3])), x.at[k].min(0.0),
            jax.ops.segment_sum(x, jnp.abs(k) % 3, 3), jax.vmap(lambda r, i: r.at[i].set(9.0))(x, k),
        ],
        (X, K),
    ),
    "order": (
        lambda x: [
            jnp.sort(x), jnp.argsort(x, 0), jax.lax.top_k(x, 3), jnp.sort(x, descending=True), jnp.median(x),
            jax.lax.sort((jnp.round(x), x), num_keys=2), jnp.unique(x, size=5), jnp.percentile(x, 30.0),
            jnp.searchsorted(jnp.sort(x[0]), x[1]),
        ],
        (X,),
    ),
    "scan": (lambda x: jax.lax.scan(lambda c, a: (c * 0.5 + a, {"y": c * a}), x[0], x, reverse=True), (X,)),
    "while": (
        lambda n: jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 1.1), (0, 1.0)),
        (np.int32(5),),
    ),
    "fori": (lambda x: jax.lax.fori_loop(0, 5, lambda i, c: c + i * x, x), (X,)),
    "cond": (lambda b, x: jax.lax.cond(b, lambda x: x + 1, lambda x: x * 2, x), (np.bool_(True), X)),
    "switch": (
        lambda i, x: jax.lax.switch(i, [lambda x: x, lambda x: x + 1, lambda x: x * 2, lambda x: -x], x),
        (np.int32(2), X),
    ),
    "scans": (lambda x: [jax.lax.map(lambda r: r.sum(), x), jax.lax.associative_scan(jnp.add, x)], (X,)),
    "random": (
        lambda k: [
            jax.random.normal(k, (3, 4)), jax.random.uniform(jax.random.split(k)[0], (5,)),
            jax.random.bernoulli(jax.random.fold_in(k, 3), 0.3, (10,)), jax.random.randint(k, (4,), 0, 9),
            jax.random.permutation(k, 6), jax.random.categorical(k, jnp.zeros((2, 5))), jax.random.gumbel(k, (3,)),
            jax.random.truncated_normal(k, -1.0, 1.0, (3,)), jax.random.bits(k, (3,), jnp.uint8),
            jax.random.normal(jax.random.key(5), (2,)), jax.random.split(k, 3),
        ],
        (KEY,),
    ),
    "convolutions": (
        lambda x, w: [
            conv(x, w, (1, 1), "SAME"), conv(x, w, (2, 2), "VALID", rhs_dilation=(2, 1)),
            jax.lax.conv_transpose(x, w, (2, 2), "SAME"),
            conv(x, w[:, :, :2], (1, 2), ((1, 0), (2, 2)), feature_group_count=2),
        ],
        (IMAGE, FILTERS),
    ),
    "gradients of a convolution": (
        jax.grad(
            lambda x, w: jnp.square(
                conv(x, w[:, :, :2], (2, 1), ((0, 0), (2, 1)), feature_group_count=2, rhs_dilation=(1, 2))
            ).sum(),
            (0, 1),
        ),
        (IMAGE, FILTERS),
    ),
    "pools": (
        lambda x: [pooled(x, "max", 3, 2, "SAME"), pooled(x, "sum", 2, 2, "VALID"), pooled(x, "max", 2, 2, "VALID")],
        (IMAGE,),
    ),
    "gradients of pools": (
        jax.grad(lambda x: (pooled(x, "max", 3, 2, "SAME") ** 2).sum() + (pooled(x, "sum", 2, 2, "SAME") ** 2).sum()),
        (IMAGE,),
    ),
    "complex numbers": (
        lambda x, z: [
            z * z.conj(), z / (1 + z), jnp.exp(z), jnp.log(z), jnp.sqrt(z), jnp.tanh(z), z**3, z ** (0.5 + 1j), abs(z),
            jnp.angle(z), z.real, z.imag, jax.lax.complex(x, x + 1), jnp.sinh(z), jnp.arcsin(z), jnp.log1p(z),
            jnp.sign(z), jnp.expm1(z), z @ z.T, jnp.vdot(z, z), z.sum(0), z.prod(1), jnp.cumsum(z, 1), z.mean(), z == z,
            z != 0, -z, jnp.where(x > 0, z, 1j), z.at[1].add(2j), z[jnp.array([1, 0])], x + 2j, jax.lax.conj(x),
            jnp.var(z), jnp.isnan(z), jax.lax.convert_element_type(x, jnp.complex64), jnp.roll(z, 1), jnp.arctan(z),
            jnp.arccosh(z),
        ],
        (X[:2, :3], Z),
    ),
    "gradients of complex numbers": (
        lambda x, z: [
            jax.grad(lambda z: (abs(z * x) ** 2).sum())(z), jax.grad(lambda x: jnp.real(jnp.exp(1j * x * z)).sum())(x),
            jax.jvp(lambda z: z * z.conj(), (z,), (1j * z,))[1], jax.vjp(lambda z: abs(z) * z, z)[1](z)[0],
        ],
        (X[:2, :3], Z),
    ),
    "transforms": (
        lambda x, z: [
            jnp.fft.fft(z), jnp.fft.ifft(z, axis=0), jnp.fft.rfft(x), jnp.fft.irfft(z), jnp.fft.irfft(z, 5),
            jnp.fft.fft2(z), jnp.fft.rfftn(x), jnp.fft.irfft2(z), jnp.fft.fft(z, 8, norm="ortho"), jnp.fft.hfft(z),
            jax.grad(lambda x: (abs(jnp.fft.rfft(x)) ** 2).sum())(x),
            jax.grad(lambda x: (jnp.fft.irfft(jnp.fft.rfft(x) * z[:, :2]) ** 2).sum())(x),
        ],
        (X[:2, :3], Z),
    ),
    "hessian": (jax.hessian(lambda x: jnp.sum(jnp.tanh(x) ** 3)), (X[0],)),
    "vmap of grad": (jax.vmap(jax.grad(lambda w, x: jnp.tanh(x @ w).sum()), (None, 0)), (W, X[:, None])),
    "remat": (jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum())), (X,)),
    "gradient of a scan": (
        jax.grad(lambda w, x: jax.lax.scan(lambda c, a: (jnp.tanh(c @ w + a), c), x[0, :3], x[:, :3])[0].sum()),
        (W[:3], X),
    ),
}  # fmt: skip


def assert_same(found: Any, wanted: Any, tolerance: float) -> None:
    found, wanted = jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(wanted)
    assert len(found) == len(wanted)
    for got, expected in zip(found, map(np.asarray, wanted), strict=True):
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_what_jax_computes(name: str) -> None:
    function, args = PROGRAMS[name]
    found = mesh.evaluate(mesh.from_jax(function, *args), *args)
    assert_same(found, jax.jit(function)(*map(jnp.asarray, args)), 2e-4 if "conv" in name else 1e-5)


# -- training


def loss(params: Any, x: Any, y: Any) -> Any:
    hidden = jax.nn.gelu(x @ params["w"] + params["b"])
    logits = hidden @ params["out"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()


def start() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "w": rng.normal(size=(8, 16)).astype(np.float32) * 0.3,
        "b": np.zeros(16, np.float32),
        "out": rng.normal(size=(16, 3)).astype(np.float32) * 0.3,
    }


def test_a_training_step_with_optax_on_two_workers_equals_jax_over_twenty_steps() -> None:
    optax = pytest.importorskip("optax", reason="optax is not installed")
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-2, 20)))

    @jax.jit
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    params = start()
    state = jax.tree_util.tree_map(np.asarray, optimizer.init(params))
    wanted = (params, state)
    imported = mesh.from_jax(step, params, state, X, I[:, 0] % 3)
    rng = np.random.default_rng(2)
    with Mesh.builder().mesh("jax").local(2).build() as workers:
        run = workers.compile(imported, params, state, X, I[:, 0] % 3, strategy="pipeline")
        for _ in range(20):
            x, y = rng.normal(size=X.shape).astype(np.float32), rng.integers(0, 3, 4).astype(np.int32)
            *wanted, expected = step(*wanted, x, y)
            params, state, found = run(params, state, x, y)
            assert_same((params, state, found), (*wanted, expected), 1e-5)
        assert len(workers.report().workers) == 2


def test_an_imported_function_is_a_function_like_any_other() -> None:
    imported = mesh.from_jax(lambda p, x: jnp.tanh(x @ p["w"]).sum(), {"w": W}, X)
    mine = mesh.evaluate(mesh.grad(imported), {"w": W}, X)
    theirs = jax.grad(lambda p, x: jnp.tanh(x @ p["w"]).sum())({"w": W}, X)
    assert_same(mine, theirs, 1e-5)
    graph = mesh.trace(lambda p, x: imported(p, x) * 2, {"w": W}, X)
    assert list(graph.input_types) == ["p/w", "x"]
    examples = mesh.from_jax(lambda x: x + 1, mesh.ShapeDtype((4, 8)))
    np.testing.assert_array_equal(np.asarray(examples(mnp.asarray(X))), X + 1)


def test_a_flax_model_and_its_gradient() -> None:
    if importlib.util.find_spec("flax") is None:
        pytest.skip("flax is not installed")
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.BatchNorm(use_running_average=False)(nn.Conv(8, (3, 3))(x))
            x = nn.avg_pool(nn.max_pool(nn.relu(x), (2, 2), (2, 2)), (2, 2), (2, 2))
            x = nn.Dropout(0.5, deterministic=False)(x.reshape(x.shape[0], -1))
            return nn.Dense(10)(x)

    net, image = Net(), IMAGE[..., :1]
    variables = net.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, image)

    def squares(variables: Any, x: Any) -> Any:
        y, _ = net.apply(variables, x, rngs={"dropout": jax.random.key(3)}, mutable=["batch_stats"])
        return (y**2).mean()

    function = jax.jit(jax.value_and_grad(squares))
    given = jax.tree_util.tree_map(np.asarray, variables)
    assert_same(mesh.evaluate(mesh.from_jax(function, given, image), given, image), function(variables, image), 1e-4)


# -- what is not known


def test_everything_that_is_not_known_is_listed_at_once() -> None:
    def unknown(x: Any) -> Any:
        return jax.lax.scan(lambda c, a: (c, jax.lax.bessel_i1e(a)), x, x)[1], jax.lax.igamma(x, x)

    with pytest.raises(Unsupported, match=r"unknown uses the primitive bessel_i1e \(1 time\), the primitive igamma"):
        mesh.from_jax(unknown, X[0])


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ("relu", r"examples\[1\] is 'relu' of class str, which makes no array.*functools.partial"),
        ({"w": W, "name": [object()]}, r"examples\[1\]\['name'\]\[0\] is <object object"),
        (np.array(["a"]), r"examples\[1\] is of dtype <U1"),
        (np.datetime64(1, "s"), r"examples\[1\] is of dtype datetime64\[s\]"),
        (2**40, r"examples\[1\] is 1099511627776 of class int"),
    ],
)
def test_an_example_that_is_no_array_is_named(example: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        mesh.from_jax(lambda x, option: x, X, example)


@pytest.mark.parametrize("example", [np.ones(3), np.arange(3), np.float64(2), 1, 1.5, True, [1, 2.5]])
def test_an_example_fits_its_own_function_as_it_does_in_jax(example: Any) -> None:
    def doubled(x: Any) -> Any:
        return jax.tree_util.tree_map(lambda leaf: leaf * 2, x)

    imported = mesh.from_jax(doubled, example)
    assert_same(imported(example), jax.jit(doubled)(example), 0)
    assert_same(mesh.evaluate(imported, example), jax.jit(doubled)(example), 0)


def test_a_scatter_of_a_function_is_not_taken_for_one_of_values() -> None:
    assert_same(mesh.evaluate(mesh.from_jax(lambda x: x.at[1].set(2.0), X), X), jnp.asarray(X).at[1].set(2.0), 0)
    with pytest.raises(Unsupported, match="scatter with a function"):
        mesh.from_jax(lambda x: x.at[1].apply(jnp.sin), X)


def test_arguments_that_do_not_fit_are_named() -> None:
    imported = mesh.from_jax(lambda p: p["w"] * 2, {"w": W})
    with pytest.raises(InputError, match="differ in structure"):
        imported({"v": W})
    with pytest.raises(InputError, match=r"leaf 0 of the arguments is f32\[4,8\], the function was imported for"):
        imported({"w": X})
