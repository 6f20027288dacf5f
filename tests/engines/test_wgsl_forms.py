"""The forms of kernels that tuning chooses among: each gives what numpy does in float64, within what WebGPU promises.

conftest.py has Dawn check each text that is made here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.adapter import as_gpu, needs_adapter
from support.dawn import needs_dawn, refusal

from wire.errors import InputError
from wire.ir.dtypes import BY_NAME
from wire.ir.graph import GraphBuilder, WireGraph
from worker.wgsl.choices import SIDE_MAX, Choice, Choices, ShapeClass
from worker.wgsl.kernels.product_forms import TILES, Sizes, broadcast, form_of, forms
from worker.wgsl.lower import grouped, lower, prepared
from worker.wgsl.problems import PROBLEMS, TOLERANCES, Problem, measurable, problem_of, standard
from worker.wgsl.profile import DeviceLimits, Profile
from worker.wgsl.shaders import Shaders

PROFILES = {  # all have the limits that WebGPU guarantees
    "software with subgroups": Profile(subgroup=8, f16=True),
    "software with wide subgroups": Profile(subgroup=16, f16=True),
    "software": Profile(f16=True),
    "gpu": Profile(software=False, f16=True),
}
EACH = [  # wide subgroups have the forms of narrow ones, with twice the lanes
    pytest.param(name, marks=pytest.mark.long) if name == "software with wide subgroups" else name for name in PROFILES
]
ODD = {  # sizes that fill no tile, of each kind
    "product": (3, 35, 41, 53),
    "line": (3, 1, 43, 53),
    "line along": (3, 1, 43, 53),
    "attention": (3, 37, 41, 20),
    "sum": (37, 43),
    "sum across": (37, 43),
    "softmax": (37, 44),
    "softmax across": (37, 43),
}
LARGE = {
    "product": (1, 4096, 4096, 4096),
    "line": (1, 1, 512, 65_536),
    "line along": (1, 1, 512, 65_536),
    "attention": (4, 256, 256, 128),
    "sum": (64, 16_384),
    "sum across": (512, 16_384),
    "softmax": (64, 16_384),
    "softmax across": (512, 16_384),
}


def graph_of(kind: str, dtype: str, sizes: tuple[int, ...]) -> WireGraph:
    builder = GraphBuilder()
    return builder.build([PROBLEMS[kind].build(builder, BY_NAME[dtype], sizes)])


def choice_of(graph: WireGraph, kind: str, profile: Profile) -> Choice:
    """What there is to choose of a graph's kernel of this kind."""
    shaders = [shader for _, made in grouped(prepared(graph, profile), Shaders(profile)) for shader in made]
    return next(s.choice for s in shaders if s.choice is not None and s.choice.shape_class.kind == kind)


def with_form(profile: Profile, choice: Choice, form: str) -> Profile:
    return replace(profile, choices=Choices({str(choice.shape_class): form}))


# -- classes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "rounded"),
    [(1, 1), (2, 2), (3, 4), (5, 4), (6, 8), (11, 8), (12, 16), (90, 64), (91, 128), (181, 128), (182, 256)],
)
def test_a_size_is_rounded_to_the_nearest_power_of_two_by_ratio(size: int, rounded: int) -> None:
    assert ShapeClass.of("sum", "f32", (size,)).sizes == (rounded,)
    assert max(size / rounded, rounded / size) <= math.sqrt(2)


def test_a_class_is_read_from_its_text_and_has_no_size_above_the_largest() -> None:
    for one in (ShapeClass.of("sum across", "f32", (3, 100)), *standard(("f32", "f16"))):
        assert ShapeClass.parse(str(one)) == one
    assert ShapeClass.of("sum", "f32", (10**9, SIDE_MAX)).sizes == (SIDE_MAX, SIDE_MAX)
    assert str(ShapeClass.parse("line along f16 1x1x1000x70000")) == "line along f16 1x1x1024x4096"


@pytest.mark.parametrize(
    "text", ["", "sum", "sum f32", "sum f32 ", "sum f32 0x4", "sum f32 -1", "sum f32 4x", "sum f32 1e3"]
)
def test_what_is_no_class_is_said_to_be_none(text: str) -> None:
    with pytest.raises(InputError, match="is no shape class"):
        ShapeClass.parse(text)


@pytest.mark.parametrize("text", ["sums f32 4x4", "sum i32 4x4", "sum f32 4x4x4"])
def test_what_nobody_measures_is_said(text: str) -> None:
    with pytest.raises(InputError, match="there is no shape class"):
        problem_of(ShapeClass.parse(text), True)


def test_a_large_class_is_measured_by_a_smaller_one() -> None:
    for kind in PROBLEMS:
        sizes = tuple(4096 for _ in PROBLEMS[kind].sizes) if kind != "attention" else (64, 4096, 4096, 128)
        for software in (True, False):
            problem = problem_of(ShapeClass(kind, "f32", sizes), software)
            assert max(type_.size for type_ in problem.graph.types) <= 1 << 25
            assert problem.shape_class.kind == kind and math.prod(problem.shape_class.sizes) <= 1 << 33
    assert problem_of(ShapeClass("sum", "f32", (64, 64)), True).shape_class.sizes == (64, 64)


# -- tables -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("kind", PROBLEMS)
def test_a_kernel_has_six_to_ten_forms_that_differ(kind: str, name: str) -> None:
    profile = PROFILES[name]
    graph = graph_of(kind, "f32", ODD[kind])
    choice = choice_of(graph, kind, profile)
    assert 6 <= len(choice.forms) <= 10 and choice.form in choice.forms
    texts = {form: lower(graph, Shaders(with_form(profile, choice, form))).modules for form in choice.forms}
    assert texts[choice.form] == lower(graph, Shaders(profile)).modules
    assert len(set(texts.values())) == len(choice.forms), "two forms are the same"
    assert {module.shape_class for module in texts[choice.form]} >= {str(choice.shape_class)}


@pytest.mark.parametrize("kind", PROBLEMS)
def test_a_form_that_another_class_has_chosen_is_not_taken(kind: str) -> None:
    profile = PROFILES["gpu"]
    graph = graph_of(kind, "f32", ODD[kind])
    choice = choice_of(graph, kind, profile)
    others = {"sum f32 1x1": choice.forms[-1], str(choice.shape_class): "no form of this kernel"}
    assert lower(graph, Shaders(replace(profile, choices=Choices(others)))) == lower(graph, Shaders(profile))


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("kind", PROBLEMS)
def test_no_form_is_too_large_for_shapes_that_are(kind: str, name: str) -> None:
    """What was measured of a class is taken for larger shapes, too: emit refuses a kernel that breaks a limit."""
    profile = PROFILES[name]
    graph = graph_of(kind, "f32", LARGE[kind])
    choice = choice_of(graph, kind, profile)
    small = choice_of(graph_of(kind, "f32", ODD[kind]), kind, profile)
    for form in {*choice.forms, *small.forms}:
        assert lower(graph, Shaders(with_form(profile, choice, form))).modules


@needs_dawn
@pytest.mark.parametrize("name", EACH)
def test_every_form_keeps_to_the_minimum_of_webgpu(name: str) -> None:
    profile, texts = PROFILES[name], set[str]()
    for kind, sizes in ODD.items():
        for dtype in TOLERANCES:
            graph = graph_of(kind, dtype, sizes)
            choice = choice_of(graph, kind, profile)
            programs = [lower(graph, Shaders(with_form(profile, choice, form))) for form in choice.forms]
            texts |= {module.text for program in programs for module in program.modules}
    refusals = [f"{refused}\n{text}" for text in sorted(texts) if (refused := refusal(text))]
    assert not refusals and len(texts) > 60, f"{len(refusals)} of {len(texts)} are refused:\n{refusals[:1]}"


def test_a_device_with_less_than_others_has_fewer_forms() -> None:
    sizes = Sizes(1, 512, 512, 512)
    few = Profile(DeviceLimits(invocations=64, workgroup_bytes=8 << 10), software=False)
    assert {form.name for form in forms(sizes, few)} < {form.name for form in forms(sizes, PROFILES["gpu"])}
    chosen = Choices({str(sizes.shape_class): "tiles 16x16 of 8x8 by 16"})
    assert form_of(sizes, replace(few, choices=chosen)) == form_of(sizes, few)
    assert form_of(sizes, replace(PROFILES["gpu"], choices=chosen)).invocations == 256


def test_integers_are_no_class_that_is_measured() -> None:
    assert not measurable(Sizes(1, 8, 8, 8, dtype="i32").shape_class)


# -- results ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[pytest.param(name, marks=needs_adapter) for name in ("software", "gpu")])
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    from worker.wgsl.engine import WgslEngine

    made = WgslEngine(0)
    yield as_gpu(made) if request.param == "gpu" else made
    made.close()


def in_float64(kind: str, arrays: list[NDArray[Any]]) -> NDArray[Any]:
    x, *others = (array.astype(np.float64) for array in arrays)
    axis = 0 if kind.endswith("across") else 1
    match kind:
        case "product" | "line":
            return x @ others[0]
        case "line along":
            return x @ others[0].swapaxes(1, 2)
        case "attention":
            keys, values = others
            return softmax(x @ keys.swapaxes(1, 2), 2) @ values
        case "sum" | "sum across":
            return x.sum(axis)
    return softmax(x, axis)


def softmax(scores: NDArray[Any], axis: int) -> NDArray[Any]:
    grown = np.exp(scores - scores.max(axis, keepdims=True))
    return np.asarray(grown / grown.sum(axis, keepdims=True))


def every_form_is_right(engine: Any, kind: str, dtype: str, but: frozenset[str] = frozenset()) -> int:
    graph, profile = graph_of(kind, dtype, ODD[kind]), engine._device.profile
    choice = choice_of(graph, kind, profile)
    problem = Problem(choice.shape_class, graph)
    expected = in_float64(kind, problem.inputs)
    known = engine._shaders
    try:
        for form in set(choice.forms) - but:
            engine._shaders = Shaders(with_form(profile, choice, form))
            program = lower(graph, engine._shaders)
            (result,) = engine.run(engine._build(graph, graph, program, False), problem.inputs)
            bound = 2e-6 if dtype == "f32" else 1e-3
            error = np.abs(result - expected).max() / np.abs(expected).max()
            assert error < bound, f"{form} is off by {error:.1e} of the largest element"
    finally:
        engine._shaders = known
    return len(choice.forms)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_every_form_gives_what_float64_does(engine: Any, kind: str) -> None:
    """First guesses of products have tests of their own (test_wgsl_products.py)."""
    guesses = frozenset(form.name for form in (*TILES, *broadcast(8))) if kind == "product" else frozenset[str]()
    assert every_form_is_right(engine, kind, "f32", guesses) >= 6


@pytest.mark.long
@pytest.mark.parametrize("kind", PROBLEMS)
def test_every_form_gives_what_float64_does_in_f16(engine: Any, kind: str) -> None:
    if not engine._device.profile.f16:
        pytest.skip("this adapter has no float16")
    assert every_form_is_right(engine, kind, "f16") >= 6
