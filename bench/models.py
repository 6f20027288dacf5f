"""Forward and backward of models and of single layers in this process, beside torch's, in turn in the same run.

    python bench/models.py --torch PYTHON [--rounds 7] [--batch 1] [--forward] [--native] [NAME ...]

Both sides have one thread, the same weights and the same inputs, float32; `loss` is the mean of the squares of what
comes out, and gradients are those of all weights, and of a single layer's input.  Ours is `mesh.function` without a
mesh, or with `--native` a run of what the native engine compiled.  Each round has a call of ours and one of torch's,
and the first, which traces and compiles, does not count.  Printed are medians of processor time, and the median, the
least and the largest of the rounds' ratios; since other programs may run beside, wall clock is no measure.  A line ends
in the largest difference of losses and norms of gradients, over the largest of these.

A model is one function for both sides: it takes the layers of a side, draws its weights, and is applied to x.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

HERE = Path(__file__).resolve()
GOAL = 4.0
Step = Callable[[], list[float]]  # one call: the loss, and the norm of each gradient


# -- models --------------------------------------------------------------------------------------------------------


def resnet18(f: Any, draw: Any, x: Any) -> Any:
    """He et al., 2015, while it trains: batch statistics, on images of 224 by 224."""
    x = f.relu(_conv_norm(f, draw, x, 64, 7, stride=2))
    x = f.max_pool(x, 3, 2, 1)
    for width, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        kept = x if stride == 1 else _conv_norm(f, draw, x, width, 1, stride=stride)
        found = f.relu(_conv_norm(f, draw, x, width, 3, stride=stride))
        x = f.relu(_conv_norm(f, draw, found, width, 3) + kept)
    return f.linear(x.mean((2, 3)), draw(1000, 512), draw(1000))


def unet(f: Any, draw: Any, x: Any) -> Any:
    """Ronneberger et al., 2015, of 16 to 128 channels, with batch norm, on images of 128 by 128."""
    kept, widths = [], (16, 32, 64)
    for width in widths:
        x = _twice(f, draw, x, width)
        kept.append(x)
        x = f.max_pool(x, 2, 2, 0)
    x = _twice(f, draw, x, 128)
    for width in reversed(widths):
        x = f.conv_transpose(x, draw(x.shape[1], width, 2, 2), draw(width), stride=2)
        x = _twice(f, draw, f.concat([kept.pop(), x], 1), width)
    return f.conv(x, draw(1, 16, 1, 1), draw(1))


def vit(f: Any, draw: Any, x: Any) -> Any:
    """Dosovitskiy et al., 2020: 12 layers, width 192, 3 heads, patches of 16 by 16."""
    width, heads = 192, 3
    x = f.conv(x, draw(width, 3, 16, 16), draw(width), stride=16)
    rows, tokens = x.shape[0], x.shape[2] * x.shape[3]
    x = f.transpose(x.reshape(rows, width, tokens), 1, 2) + draw(tokens, width)
    for _ in range(12):
        y = f.layer_norm(x, draw(width), draw(width))
        q, k, v = (
            f.transpose(f.linear(y, draw(width, width), draw(width)).reshape(rows, tokens, heads, -1), 1, 2)
            for _ in range(3)
        )
        y = f.transpose(f.attention(q, k, v), 1, 2).reshape(rows, tokens, width)
        x = x + f.linear(y, draw(width, width), draw(width))
        y = f.layer_norm(x, draw(width), draw(width))
        y = f.gelu(f.linear(y, draw(4 * width, width), draw(4 * width)))
        x = x + f.linear(y, draw(width, 4 * width), draw(width))
    return f.linear(f.layer_norm(x, draw(width), draw(width)).mean(1), draw(1000, width), draw(1000))


def _conv_norm(f: Any, draw: Any, x: Any, width: int, size: int, stride: int = 1) -> Any:
    x = f.conv(x, draw(width, x.shape[1], size, size), None, stride=stride, padding=size // 2)
    return f.batch_norm(x, draw(width), draw(width))


def _twice(f: Any, draw: Any, x: Any, width: int) -> Any:
    return f.relu(_conv_norm(f, draw, f.relu(_conv_norm(f, draw, x, width, 3)), width, 3))


def layer(name: str, weight: Sequence[int], **options: int) -> Callable[..., Any]:
    """One convolution, whose input's gradient is wanted too."""

    def model(f: Any, draw: Any, x: Any) -> Any:
        return getattr(f, name)(x + draw(1), draw(*weight), None, **options)

    return model


MODELS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "resnet18": (resnet18, (3, 224, 224)),
    "unet": (unet, (3, 128, 128)),
    "vit": (vit, (3, 224, 224)),
    "transposed 2x2, stride 2": (layer("conv_transpose", (64, 32, 2, 2), stride=2), (64, 64, 64)),
    "transposed 3x3": (layer("conv_transpose", (64, 32, 3, 3)), (64, 64, 64)),
    "transposed 4x4, stride 2": (layer("conv_transpose", (64, 32, 4, 4), stride=2, padding=1), (64, 64, 64)),
    "3x3": (layer("conv", (64, 64, 3, 3), padding=1), (64, 56, 56)),
    "1x1": (layer("conv", (256, 64, 1, 1)), (64, 56, 56)),
    "7x7, stride 2": (layer("conv", (64, 3, 7, 7), stride=2, padding=3), (3, 224, 224)),
    "patches of 16": (layer("conv", (768, 3, 16, 16), stride=16), (3, 224, 224)),
    "dilated": (layer("conv", (64, 64, 3, 3), padding=2, dilation=2), (64, 56, 56)),
    "depthwise 3x3": (layer("conv", (96, 1, 3, 3), padding=1, groups=96), (96, 56, 56)),
    "depthwise 7x7": (layer("conv", (96, 1, 7, 7), padding=3, groups=96), (96, 56, 56)),
    "8 groups": (layer("conv", (64, 8, 3, 3), padding=1, groups=8), (64, 56, 56)),
    "in three dimensions": (layer("conv", (32, 16, 3, 3, 3), padding=1), (16, 16, 32, 32)),
    "in one dimension": (layer("conv", (128, 128, 5), padding=2), (128, 400)),
}


# -- the two sides -------------------------------------------------------------------------------------------------


class Draw:
    """Draws weights, the same on both sides; or hands out what stands for those drawn before."""

    def __init__(self, make: Callable[[Any], Any], given: Sequence[Any] = ()) -> None:
        self.drawn: list[Any] = []
        self._make, self._given, self._rng = make, iter(given), np.random.default_rng(0)

    def __call__(self, *shape: int) -> Any:
        found = next(self._given, None)
        if found is None:
            spread = max(1, int(np.prod(shape[1:]))) ** -0.5
            found = self._make(self._rng.normal(0, spread, shape).astype(np.float32))
            self.drawn.append(found)
        return found


def ours(name: str, batch: int, forward: bool, native: bool) -> Step:
    sys.path.insert(0, str(HERE.parents[1]))
    import mesh
    import mesh.numpy as mnp
    from mesh import nn

    class Layers:
        relu, gelu, conv_transpose, conv = nn.relu, nn.gelu, nn.conv_transpose, nn.conv
        layer_norm, linear, attention = nn.layer_norm, nn.linear, nn.scaled_dot_product_attention
        transpose, concat = mnp.swapaxes, mnp.concat

        @staticmethod
        def max_pool(x: Any, size: int, stride: int, padding: int) -> Any:
            return nn.max_pool(x, size, stride=stride, padding=padding)

        @staticmethod
        def batch_norm(x: Any, weight: Any, bias: Any) -> Any:
            return nn.batch_norm(x, *nn.batch_statistics(x), weight, bias)

    model, shape = MODELS[name]
    x, draw = _input(batch, shape), Draw(lambda array: array)
    model(Layers, draw, mnp.asarray(x))
    weights = draw.drawn

    def loss(weights: Any, x: Any) -> Any:
        return mnp.mean(mnp.square(model(Layers, Draw(mnp.asarray, weights), x)))

    wanted = loss if forward else mesh.value_and_grad(loss)
    called = compiled(wanted, weights, x) if native else mesh.function(wanted)

    def step() -> list[float]:
        if forward:
            return [float(called(weights, x))]
        value, gradient = called(weights, x)
        return [float(value), *(float(np.linalg.norm(np.asarray(each))) for each in gradient)]

    return step


def compiled(fn: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """What a planner would send to a worker, compiled by the native engine; its run with these arguments."""
    import mesh
    from wire.passes.simplify import simplify
    from worker.cpu.engine import evaluate, ordered
    from worker.native.engine import NativeEngine

    traced, engine = mesh.trace_full(fn, *args), NativeEngine()
    graph, bound = simplify(traced.graph, evaluate), traced.bind(*args)
    executable, given = engine.compile(graph), ordered(graph, bound.inputs)
    return lambda *_: traced.unflatten(engine.run(executable, given))


def torchs(name: str, batch: int, forward: bool) -> Step:
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)

    class Layers:
        relu, gelu, concat, transpose = functional.relu, functional.gelu, torch.cat, torch.transpose
        linear, max_pool, attention = functional.linear, functional.max_pool2d, functional.scaled_dot_product_attention

        @staticmethod
        def conv(x: Any, weight: Any, *rest: Any, **options: Any) -> Any:
            return getattr(functional, f"conv{weight.ndim - 2}d")(x, weight, *rest, **options)

        @staticmethod
        def conv_transpose(x: Any, weight: Any, *rest: Any, **options: Any) -> Any:
            return getattr(functional, f"conv_transpose{weight.ndim - 2}d")(x, weight, *rest, **options)

        @staticmethod
        def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
            return functional.layer_norm(x, weight.shape, weight, bias)

        @staticmethod
        def batch_norm(x: Any, weight: Any, bias: Any) -> Any:
            return functional.batch_norm(x, None, None, weight, bias, training=True)

    model, shape = MODELS[name]
    x, draw = torch.tensor(_input(batch, shape)), Draw(lambda array: torch.tensor(array, requires_grad=True))
    with torch.no_grad():
        model(Layers, draw, x)

    def step() -> list[float]:
        with torch.set_grad_enabled(not forward):
            value = model(Layers, Draw(None, draw.drawn), x).square().mean()
        if forward:
            return [float(value)]
        return [value.item(), *(each.norm().item() for each in torch.autograd.grad(value, draw.drawn))]

    return step


def _input(batch: int, shape: Sequence[int]) -> Any:
    return np.random.default_rng(1).normal(size=(batch, *shape)).astype(np.float32)


# -- in turn -------------------------------------------------------------------------------------------------------


def timed(step: Step) -> tuple[float, list[float]]:
    """Seconds of processor time of a call, and what it gave."""
    began_s = time.process_time()
    found = step()
    return time.process_time() - began_s, found


def answer() -> None:
    """The other side: a line with a model for each call."""
    steps: dict[str, Step] = {}
    for line in sys.stdin:
        name, *rest = json.loads(line)
        if name not in steps:
            steps = {name: torchs(name, *rest)}
        print(json.dumps(timed(steps[name])), flush=True)


def compare(name: str, asked: argparse.Namespace, torch: Any) -> None:
    step, wanted = ours(name, asked.batch, asked.forward, asked.native), json.dumps([name, asked.batch, asked.forward])
    rounds = []
    for _ in range(asked.rounds + 1):
        mine, found = timed(step)
        torch.stdin.write(wanted + "\n")
        torch.stdin.flush()
        theirs, expected = json.loads(torch.stdout.readline())
        rounds.append((mine, theirs))
    apart = max(abs(a - b) for a, b in zip(found, expected, strict=True)) / max(expected)
    mine, theirs = (1e3 * statistics.median(each) for each in zip(*rounds[1:], strict=True))
    ratios = sorted(mine / theirs for mine, theirs in rounds[1:])
    ratio = f"{statistics.median(ratios):>9.2f}{ratios[0]:>7.2f}{ratios[-1]:>6.2f}"
    print(f"{name:>26}{mine:>10.1f}{theirs:>10.1f}{ratio}{apart:>12.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS), metavar="NAME", help="; ".join(MODELS))
    parser.add_argument("--torch", default="", help="a Python that has torch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--forward", action="store_true", help="without gradients")
    parser.add_argument("--native", action="store_true", help="a run of what the native engine compiled")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.answer:
        answer()
        return
    if not asked.torch:
        parser.error("--torch PYTHON is missing")
    unknown = sorted(set(asked.names) - set(MODELS))
    if unknown:
        parser.error(f"no model {unknown[0]!r}; there are {', '.join(MODELS)}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; processor ms per call, medians of {asked.rounds}")
    print(f"{'':>26}{'mesh':>10}{'torch':>10}{'ratio':>9}{'least':>7}{'most':>6}{'apart':>12}")
    pipe = partial(subprocess.Popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with pipe([asked.torch, str(HERE), "--answer"]) as torch:
        for name in asked.names:
            compare(name, asked, torch)
        assert torch.stdin is not None
        torch.stdin.close()
    print(f"goal: at most {GOAL:g} times torch's for models and transposed convolutions, forward and backward")


if __name__ == "__main__":
    main()
