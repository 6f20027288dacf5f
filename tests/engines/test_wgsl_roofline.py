"""What the GPU kernels of products ask of a GPU, held without one: figures read from their text."""

from __future__ import annotations

import pytest

from docs.tools.wgsl_roofline import KERNELS, PAGE, Roofline, kernel_of, measure, page
from worker.wgsl.profile import Profile

GPU = Profile(software=False, f16=True)


@pytest.fixture(scope="module")
def figures() -> dict[str, Roofline]:
    return {name: measure(kernel_of(name, GPU)) for name in KERNELS}


def test_gpu_products_make_sixteen_fma_of_each_load_from_workgroup_memory(figures: dict[str, Roofline]) -> None:
    assert {name: own.fma_per_load for name, own in figures.items() if own.fma_per_load < 16} == {}


def test_no_loop_of_a_gpu_product_divides(figures: dict[str, Roofline]) -> None:
    assert {name: own.divisions for name, own in figures.items() if own.divisions} == {}


def test_large_products_make_enough_of_each_byte(figures: dict[str, Roofline]) -> None:
    """A tile of r rows and c columns makes r * c / (r + c) / 2 operations of each byte of f32."""
    assert figures["1024 x 1024 x 1024"].flops_per_byte == 128 * 128 / 256 / 2
    assert figures["the same in f16"].flops_per_byte == 128 * 128 / 256
    assert figures["odd sizes, 513 x 515 x 511"].flops_per_byte == 64 * 64 / 128 / 2


def test_tiles_keep_to_the_minimum_of_webgpu_and_need_not_spill(figures: dict[str, Roofline]) -> None:
    for own in figures.values():
        assert own.workgroup_bytes <= 16 << 10
        assert own.registers <= 168  # an estimate, of the 255 that compilers for GPUs give an invocation at most


def test_the_page_has_the_figures_of_now() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run: python -m docs.tools.wgsl_roofline"


def test_a_kernel_that_divides_and_loads_more_is_told_from_one_that_does_not() -> None:
    """The figures are read from text, so what spoils a kernel must show in them."""
    text = kernel_of("1024 x 1024 x 1024", GPU)
    good = measure(text)
    spoilt = text.replace("let step = next_step;", "let step = next_step; let more = step / 3u + step % 5u;")
    assert (good.divisions, measure(spoilt).divisions) == (0, 2)
    first = text.index("let l0_0 = left[")
    again = text[:first] + "let other = left[0u];\n    " + text[first:]
    assert measure(again).fma_per_load < good.fma_per_load
