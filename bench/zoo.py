"""Forward passes of known models on the native engine, beside torch's and onnxruntime's, in turn in the same run.

    python bench/zoo.py --torch PYTHON [--beside torch onnxruntime] [--rounds 9] [--threads 1] [NAME ...]

PYTHON has torch, timm, transformers and what this project needs, and onnxruntime and onnx where it is asked for.  It
makes the models with random weights, converts them by `mesh.from_torch` and `torch.onnx.export`, and keeps the other
libraries' sides; this process compiles the graphs and has the mesh's.  What is timed is the run of what was compiled,
its weights loaded as a worker does, against the call of the module or of the ONNX session: no tracing, no planning, no
messages.  Each round has a call of ours and one of each other library; the first round does not count.  Printed are
medians of milliseconds (of processor time where there is one thread), the least, the median and the largest ratio of a
round, how many programs and numpy calls the graph became, and the largest difference of an output over the largest
value.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

GOAL = 1.0
LIBRARIES = ("torch", "onnxruntime")
APART_MAX = 1e-4  # of the largest value
Call = Callable[[], Any]


# -- models, as torch has them ---------------------------------------------------------------------------------------


def _timm(name: str) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
    def made() -> tuple[Any, tuple[Any, ...]]:
        import timm
        import torch

        return timm.create_model(name, pretrained=False), (torch.randn(1, 3, 224, 224),)

    return made


def _unet() -> tuple[Any, tuple[Any, ...]]:
    """Ronneberger et al., 2015, of 16 to 128 channels, on an image of 128 by 128."""
    import torch
    from torch import nn

    def twice(into: int, out: int) -> Any:
        layers = [layer for width in (into, out) for layer in (
            nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()
        )]  # fmt: skip
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = (16, 32, 64)
            self.down = nn.ModuleList([twice(into, out) for into, out in zip((3, *widths), widths, strict=False)])
            self.middle, self.pool = twice(64, 128), nn.MaxPool2d(2)
            self.up = nn.ModuleList([nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in widths[::-1]])
            self.after = nn.ModuleList([twice(2 * width, width) for width in widths[::-1]])
            self.last = nn.Conv2d(16, 1, 1)

        def forward(self, x: Any) -> Any:
            kept = []
            for layer in self.down:
                x = layer(x)
                kept.append(x)
                x = self.pool(x)
            x = self.middle(x)
            for up, after in zip(self.up, self.after, strict=True):
                x = after(torch.cat([kept.pop(), up(x)], 1))
            return self.last(x)

    return UNet(), (torch.randn(1, 3, 128, 128),)


def _lstm() -> tuple[Any, tuple[Any, ...]]:
    """Two layers of 256, over 64 steps of 8 sequences."""
    import torch
    from torch import nn

    class Lstm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(128, 256, 2, batch_first=True), nn.Linear(256, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0])

    return Lstm(), (torch.randn(8, 64, 128),)


def _gnn() -> tuple[Any, tuple[Any, ...]]:
    """Kipf and Welling, 2017: two layers over 2,708 nodes of 256 features and 10,556 edges, as Cora has."""
    import torch
    from torch import nn

    class Gnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(256, 64), nn.Linear(64, 7)

        def forward(self, x: Any, source: Any, target: Any) -> Any:
            def spread(h: Any) -> Any:
                return torch.zeros_like(h).index_add(0, target, h[source])

            degree = spread(torch.ones_like(x[:, :1])).clamp(min=1)
            h = torch.relu(spread(self.first(x)) / degree)
            return torch.log_softmax(spread(self.second(h)) / degree, -1)

    edges = torch.randint(0, 2708, (2, 10556))
    return Gnn(), (torch.randn(2708, 256), edges[0], edges[1])


def _bert() -> tuple[Any, tuple[Any, ...]]:
    """BERT base without its heads, on 128 tokens."""
    import torch
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig()), (torch.randint(0, 30000, (1, 128)),)


def _minilm(rows: int, tokens: int) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
    """MiniLM, Wang et al., 2020, as all-MiniLM-L6-v2 has it: 6 layers of 384, 12 heads."""

    def made() -> tuple[Any, tuple[Any, ...]]:
        import torch
        from transformers import BertConfig, BertModel

        sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
        return BertModel(BertConfig(**sizes)), (torch.randint(0, 30000, (rows, tokens)),)

    return made


MODELS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "resnet18": _timm("resnet18"),
    "efficientnet_b0": _timm("efficientnet_b0"),
    "vit_tiny": _timm("vit_tiny_patch16_224"),
    "convnext_atto": _timm("convnext_atto"),
    "mobilenetv3": _timm("mobilenetv3_large_100"),
    "swin_tiny": _timm("swin_tiny_patch4_window7_224"),
    "unet": _unet,
    "lstm": _lstm,
    "gnn": _gnn,
    "minilm 32x128": _minilm(32, 128),
    "minilm 1x32": _minilm(1, 32),
    "bert": _bert,
}


# -- the other libraries' side ----------------------------------------------------------------------------------------


def answer(folder: Path, threads: int) -> None:
    """One call of a model for each line, which names a library and the model; a new one is made first, with its
    file."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    models: dict[str, dict[str, Call]] = {}
    for line in sys.stdin:
        library, _, name = line.strip().partition(" ")
        if name not in models:
            torch.manual_seed(0)
            module, given = MODELS[name]()
            for layer in module.eval().modules():
                if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):  # others would do nothing
                    layer.running_mean.normal_(0, 0.1)
                    layer.running_var.uniform_(0.5, 2)
            models = {name: {"torch": partial(module, *given)}}
            save(folder / f"{name}.npz", module, given)
        if library not in models[name]:
            models[name][library] = by_onnxruntime(folder / f"{name}.onnx", module, given, threads)
        print(json.dumps(timed(models[name][library], threads)[0]), flush=True)


def by_onnxruntime(path: Path, module: Any, given: tuple[Any, ...], threads: int) -> Call:
    """A call of the model in onnxruntime, all of whose optimisations are on, which gives what torch's gives."""
    import onnxruntime
    import torch

    class Plain(torch.nn.Module):
        """The module with tensors alone for results."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *given: Any) -> Any:
            return tuple(results_of(self.module(*given)))

    torch.onnx.export(Plain().eval(), given, path, dynamo=False, opset_version=17)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    named = {put.name: array.numpy() for put, array in zip(session.get_inputs(), given, strict=True)}
    found, expected = session.run(None, named), results_of(module(*given))
    for mine, theirs in zip(found, expected, strict=True):
        assert difference(mine, theirs.numpy()) < APART_MAX, "onnxruntime computes something else"
    return partial(session.run, None, named)


def results_of(results: Any) -> list[Any]:
    return list(results.values()) if isinstance(results, dict) else [results]


def save(path: Path, module: Any, given: tuple[Any, ...]) -> None:
    """A file of the model's graph, what it is called with, and what torch computes."""
    import mesh

    model = mesh.from_torch(module, *given)
    called = [each.numpy() for each in given]
    traced = mesh.trace_full(model, *called)
    bound = traced.bind(*called)
    tensors = {**bound.inputs, **{name: np.asarray(handle) for name, handle in bound.params.items()}}
    traced.graph.save(path.with_suffix(".wire"))
    expected = {f"expected/{at}": result.numpy() for at, result in enumerate(results_of(module(*given)))}
    np.savez(path, **{f"given/{name}": array for name, array in tensors.items()}, **expected)


def timed(call: Call, threads: int) -> tuple[float, Any]:
    """Seconds of processor time, of wall clock where there are several threads, and what the call gave."""
    clock = time.process_time if threads == 1 else time.perf_counter
    began_s = clock()
    found = call()
    return clock() - began_s, found


# -- our side --------------------------------------------------------------------------------------------------------


def compiled(engine: Any, graph: Any, given: Mapping[str, Any]) -> tuple[Any, Call]:
    """What a planner would send to a worker, compiled there, and a run of it with its weights loaded."""
    from wire.passes.simplify import simplify
    from worker.cpu.engine import evaluate, ordered

    graph = simplify(graph, evaluate)
    executable, tensors = engine.compile(graph), ordered(graph, given)
    weights = [engine.load(tensor) for tensor in tensors[len(graph.inputs) :]]
    return executable, partial(engine.run, executable, [*tensors[: len(graph.inputs)], *weights])


def compare(name: str, asked: argparse.Namespace, engine: Any, folder: Path, others: Any) -> None:
    from wire.ir.graph import WireGraph

    def theirs_s(library: str) -> float:
        others.stdin.write(f"{library} {name}\n")
        others.stdin.flush()
        return float(json.loads(others.stdout.readline()))

    for library in ("torch", *asked.beside):  # the first makes the model
        theirs_s(library)
    held = dict(np.load(folder / f"{name}.npz"))
    given = {key.removeprefix("given/"): array for key, array in held.items() if key.startswith("given/")}
    executable, call = compiled(engine, WireGraph.load(folder / f"{name}.wire"), given)
    timed(call, asked.threads)
    _, found = timed(call, asked.threads)  # by weights that are packed
    apart = max(difference(mine, held[f"expected/{at}"]) for at, mine in enumerate(found))
    rounds = [
        (timed(call, asked.threads)[0], *(theirs_s(library) for library in asked.beside)) for _ in range(asked.rounds)
    ]
    programs = sum(hasattr(step, "kernel") and not hasattr(step, "node") for step in executable.calls)
    for place, library in enumerate(asked.beside, 1):
        mine, theirs = (1e3 * statistics.median(each[at] for each in rounds) for at in (0, place))
        ratios = sorted(each[0] / each[place] for each in rounds)
        print(
            f"{name:>16}{mine:>9.2f}{theirs:>9.2f} {library:12} {ratios[0]:.2f} {statistics.median(ratios):.2f} "
            f"{ratios[-1]:.2f}{programs:>10}{len(executable.calls) - programs:>7}{apart:>11.1e}",
            flush=True,
        )


def difference(found: Any, expected: Any) -> float:
    """The largest difference, over the largest value."""
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS), metavar="NAME", help="; ".join(MODELS))
    parser.add_argument(
        "--torch", default="", help="a Python that has torch, timm, transformers and this project's needs"
    )
    parser.add_argument("--beside", nargs="+", choices=LIBRARIES, default=["torch"], help="the other libraries")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--files", type=Path, help="a folder to keep the models' files in")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.answer:
        answer(asked.files, asked.threads)
        return
    if not asked.torch:
        parser.error("--torch PYTHON is missing")
    unknown = sorted(set(asked.names) - set(MODELS))
    if unknown:
        parser.error(f"no model {unknown[0]!r}; there are {', '.join(MODELS)}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.files or Path(scratch)
        folder.mkdir(exist_ok=True)
        compare_all(asked, folder)


def compare_all(asked: argparse.Namespace, folder: Path) -> None:
    from worker.native.engine import NativeEngine

    print(
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {asked.threads} threads, medians of {asked.rounds}"
    )
    print(f"{'ms':>16}{'mesh':>9}{'other':>9} {'':12} {'ratios':14}{'programs':>10}{'numpy':>7}{'apart':>11}")
    command = [asked.torch, str(HERE), "--answer", "--files", str(folder), "--threads", str(asked.threads)]
    engine = NativeEngine(threads=asked.threads)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as others:
        for name in asked.names:
            compare(name, asked, engine, folder, others)
        assert others.stdin is not None
        others.stdin.close()
    engine.close()
    print(f"goal: at most {GOAL:g} times the others'")


if __name__ == "__main__":
    main()
