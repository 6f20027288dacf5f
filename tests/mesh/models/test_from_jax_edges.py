"""mesh.from_jax at the edges of dtypes and functions: what JAX computes there, or a refusal."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

import mesh
from mesh.errors import InputError, Unsupported

jax = pytest.importorskip("jax", reason="JAX is not installed (the extra `jax`)")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

X = np.arange(10, dtype=np.float32)
BITS = np.array([[6, 5, 12], [3, -1, 9]], np.int32)
FAR = np.uint32(2**32 - 1)
KEY = np.array([0, 7], np.uint32)
W = np.arange(6, dtype=np.float32).reshape(2, 3)


def uniform_of_each(key: Any) -> Any:
    return jax.vmap(lambda one, more: jax.random.uniform(jax.random.fold_in(one, more), (3,)))(
        jax.random.split(key, 4), jnp.arange(4, dtype=jnp.uint32)
    )


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "bits of integers are reduced": (
        lambda x: [
            *[lax.reduce_and(x, axes) for axes in ((0,), (1,), (0, 1))], lax.reduce_or(x, (1,)),
            lax.reduce_xor(x, (1,)),
            jnp.bitwise_and.reduce(x.astype(jnp.uint8), axis=1), lax.reduce_xor(x > 4, (1,)),
        ],
        (BITS,),
    ),
    "nothing is reduced": (
        lambda x: [lax.reduce_and(x, (0,)), lax.reduce_or(x, (0,)), lax.reduce_and(x.astype(jnp.uint8), (0,))],
        (np.zeros((0, 2), np.int32),),
    ),
    "nothing is equal": (lambda x: [jnp.any(x), jnp.all(x), jnp.all(x, 1), jnp.allclose(x, x)], (X[:0, None],)),
    "the largest of nothing": (
        lambda x: [lax.reduce_max(x, (0,)), lax.reduce_min(x, (0, 1)), jax.nn.logsumexp(x, 0)], (X[:0, None],),
    ),
    "a batch of loops": (
        jax.vmap(lambda x, n: lax.while_loop(lambda at: at[0] < n, lambda at: (2 * at[0] + 1, at[1] - at[0]), (x, W))),
        (X[:4], np.array([3, 1, 50, -1], np.float32)),
    ),
    "a batch of no loops": (jax.vmap(lambda n: lax.fori_loop(0, n, lambda i, s: s + i, 0)), (np.zeros(0, np.int32),)),
    "bools": (lambda x, y: [jnp.dot(x, y), jnp.outer(x, y), jnp.maximum(x, y), jnp.clip(x, y, x)], (X > 4, X > 6)),
    "halves are rounded away from zero": (
        lax.round, (np.array([8388609, 0.49999997, -0.49999997, 0.5, 2.5, -2.5, 1e10, np.inf, np.nan], np.float32),),
    ),
    "halves of a half": (lax.round, (np.array([1025, 2047, 0.4998, 2.5], np.float16),)),
    "an arithmetic shift of an unsigned integer": (
        lax.shift_right_arithmetic, (np.array([2**31, 2**32 - 1, 7], np.uint32), np.array([3, 32, 1], np.uint32)),
    ),
    "a slice from far behind": (lambda x, i: lax.dynamic_slice(x, (i,), (3,)), (X, FAR)),
    "an update far behind": (lambda x, i: lax.dynamic_update_slice(x, 0 * x[:3], (i,)), (X, FAR)),
    "random numbers for each of several keys": (uniform_of_each, (KEY,)),
    "keys of several keys": (lambda k: jax.vmap(lambda one: jax.random.split(one, 3))(jax.random.split(k, 4)), (KEY,)),
}  # fmt: skip


def both(function: Callable[..., Any], *args: Any) -> list[tuple[Any, Any]]:
    found = jax.tree_util.tree_leaves(mesh.evaluate(mesh.from_jax(function, *args), *args))
    wanted = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(jax.jit(function)(*args))]
    assert [(each.shape, each.dtype) for each in found] == [(each.shape, each.dtype) for each in wanted]
    return list(zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_what_jax_computes_at_the_edges(name: str) -> None:
    function, args = PROGRAMS[name]
    for found, wanted in both(function, *args):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32])
def test_the_lowest_integer_is_divided_towards_zero(dtype: Any) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array([low, low, low, low, 7, -7, low + 1, high, -7], dtype)
    y = np.array([2, -2, 3, low, low, low, -3, -1, 2], dtype)
    for function in (lax.div, lax.rem, jnp.floor_divide, jnp.remainder):
        for found, wanted in both(function, x, y):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint32, np.uint64])
def test_integers_are_divided_by_zero_as_jax_divides_them(dtype: Any) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x, y = np.array([0, 1, 5, high, low, 7, high], dtype), np.array([0, 0, 0, 0, 0, 2, 3], dtype)
    by_number = [partial(lambda operation, number, x: operation(x, dtype(number)), *pair)
                 for pair in product((lax.div, lax.rem), (0, 3))]  # fmt: skip
    with jax.enable_x64(True):
        for function in (lax.div, lax.rem, jnp.floor_divide, jnp.remainder, jnp.divmod, jnp.fmod):
            for found, wanted in both(function, x, y):
                np.testing.assert_array_equal(found, wanted)
        for function in by_number:
            for found, wanted in both(function, x):
                np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-13)])
def test_special_functions_are_exact_where_they_are_small_and_infinite_where_they_are(
    dtype: Any, tolerance: float
) -> None:
    x = np.array([-6, -1, -0.0, 0.5, 1, 3, 5, 9, math.inf, -math.inf], dtype)
    gammas = np.array([0.1, 2.5, 1e6, -0.5, -1000.25, 0, -1, -2, math.inf, -math.inf, math.nan], dtype)
    with jax.enable_x64(dtype is np.float64):
        (erfc, _), (gammaln, _), (inverse, inverse_of_jax) = both(
            lambda x, g, y: [jax.scipy.special.erfc(x), jax.scipy.special.gammaln(g), lax.erf_inv(y)],
            x, gammas, np.array([-1, 1, 0.5, 2], dtype),
        )  # fmt: skip
    np.testing.assert_allclose(erfc, [math.erfc(value) for value in x], rtol=tolerance)
    poles = [math.inf if value == round(value) and value <= 0 else math.lgamma(value) for value in gammas[:8]]
    np.testing.assert_allclose(gammaln, [*poles, math.inf, math.inf, math.nan], rtol=tolerance)
    np.testing.assert_allclose(inverse, inverse_of_jax, rtol=tolerance)


def test_functions_of_halves_are_computed_in_more_bits() -> None:
    x = jnp.asarray([8, 1e30, -27, 0.25], "bfloat16")
    functions = (jnp.cbrt, lambda x: lax.erf_inv(0.03 * x[3:]), jax.scipy.special.gammaln, jax.scipy.special.erfc)
    for function in functions:
        for found, wanted in both(function, x):
            np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), rtol=8e-3)


def test_random_numbers_and_indices_of_64_bits_are_those_of_jax() -> None:
    def drawn(key: Any, seed: Any) -> Any:
        whole = jax.random.key_data(jax.random.key(seed))
        return jax.random.bits(key, (3,), "uint64"), jax.random.uniform(key, (3,)), whole

    with jax.enable_x64(True):
        pairs = both(drawn, KEY, np.int64(2**40 + 5))
        pairs += both(lambda x, i: x.at[i].get(mode="fill"), X, np.array([2**32 + 1, -(2**40), 3]))
    for found, wanted in pairs:
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_keys_of_other_generators_are_refused(kind: str) -> None:
    with pytest.raises(Unsupported, match=r"random_seed of key<u?rbg>"):
        mesh.from_jax(lambda: jax.random.uniform(jax.random.key(3, impl=kind)))
    with pytest.raises(InputError, match="which makes no array of JAX and of a graph"):
        mesh.from_jax(jax.random.uniform, jax.random.key(3, impl=kind))


def test_counters_of_older_versions_of_jax_are_refused() -> None:
    with (
        jax.threefry_partitionable(False),
        pytest.raises(Unsupported, match="random_bits with jax_threefry_partitionable=False"),
    ):
        mesh.from_jax(jax.random.uniform, KEY)


def test_zeros_keep_the_signs_that_they_have_in_jax() -> None:
    x = np.array([0.0, -0.0, -4, 4, -2.5, math.inf, math.nan], np.float32)
    for function in (lax.sign, lambda x: lax.rem(x, jnp.float32(2)), lambda x: lax.rem(x, jnp.float32(-2))):
        for found, wanted in both(function, x):
            np.testing.assert_array_equal(found, wanted)
            assert np.array_equal(np.signbit(found)[:-1], np.signbit(wanted)[:-1])
