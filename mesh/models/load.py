"""`mesh.load`: a model from a file, a folder or another framework's object.

To add a format: an importer in `importers/`, which makes a Model, and one row of `FORMATS`.  This file knows how
to recognise a format, and nothing of what is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from wire.errors import ConfigError, InputError

from ..util.missing_names import IMPORT
from .model import Model
from .store import located, path_of, whole_model

PICKLES = (".pt", ".pth", ".ckpt", ".bin", ".pkl")


@dataclass(frozen=True, slots=True)
class Format:
    """`importer.load(source)` makes the Model, or of files that name others `load(source, follow_links)`.  A module
    that is not installed comes with `extra`."""

    what: str
    matches: Callable[[Any], bool]
    importer: str
    extra: str = ""
    beside: bool = False  # its weights may be in files that it names


def _named_like(suffix: str) -> Callable[[Any], bool]:
    return lambda source: isinstance(source, Path) and source.suffix == suffix


def _is_folder(source: Any) -> bool:
    return isinstance(source, Path) and source.is_dir()


def _of_class(module: str, name: str) -> Callable[[Any], bool]:
    """An object of a class of another framework, which need not be imported to know."""
    return lambda source: any(
        kind.__name__ == name and kind.__module__.split(".")[0] == module for kind in type(source).__mro__
    )


FORMATS: tuple[Format, ...] = (
    Format("a graph (.wire)", _named_like(".wire"), "wire_file"),
    Format("a GGUF file (.gguf)", _named_like(".gguf"), "gguf"),
    Format("a folder with config.json and safetensors", _is_folder, "huggingface"),
    Format("an ONNX file (.onnx)", _named_like(".onnx"), "onnx", "onnx", beside=True),
    Format("an onnx.ModelProto", _of_class("onnx", "ModelProto"), "onnx", "onnx"),
)


def load(source: Any, dims: Mapping[str, int] | None = None, *, follow_links: bool = False) -> Model:
    """Load a model from a file, a folder or another framework's object.

    Parameters
    ----------
    source : str, Path or object
        A .wire, .gguf or .onnx file, a folder with config.json and safetensors or with one .gguf file, an
        onnx.ModelProto, or the name of a model, ORG/NAME or ORG/NAME:PART, which is looked for in the store
        (`ModelStore`) and then on the hub.
    dims : mapping of str to int, optional
        Sizes of free dimensions by name.
    follow_links : bool, optional
        Whether the file that an ONNX model names for its weights may be a symbolic link, which may lead out of the
        model's folder, as in caches of model hubs.

    Returns
    -------
    Model
        The model; its weights are read when they are used.

    Raises
    ------
    InputError
        If there is nothing there, its format is not known or it is damaged, or it has no such free dimension.  If its
        weights are in a symbolic link and `follow_links` does not say so.
    ConfigError
        If the format needs a package that is not installed; it names the extra.
    Unsupported
        If the file uses what this version does not have; it lists all of it.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> import mesh
    >>> with TemporaryDirectory() as folder:
    ...     mesh.trace(lambda x: x * 2, np.ones(3)).save(f"{folder}/double.wire")
    ...     model = mesh.load(f"{folder}/double.wire")
    >>> model(np.array([1.0, 2.0, 3.0]))
    Array([2., 4., 6.], dtype=float64)
    """
    if isinstance(source, str | Path):
        path = path_of(str(source))
    if isinstance(source, str):
        source = path if any(form.matches(path) for form in FORMATS) else located(source)
    if isinstance(source, Path) and not source.exists():
        raise InputError(f"{source} does not exist")
    if _is_folder(source):
        source = whole_model(source)
    for form in FORMATS:
        if form.matches(source):
            options = {"follow_links": follow_links} if form.beside else {}
            model: Model = _importer(form).load(source, **options)
            return model.sized(dims) if dims else model
    what = f"{source}" if isinstance(source, Path) else f"an object of class {type(source).__name__}"
    known = ", ".join(form.what for form in FORMATS)
    if isinstance(source, Path) and source.suffix in PICKLES:
        step = f"Save its tensors as safetensors, beside the config.json. {IMPORT}"
        raise InputError(f"{source} is a pickle, which can run code, and is not loaded", next_step=step)
    more = f". {IMPORT}" if hasattr(source, "state_dict") else ""
    raise InputError(f"{what} is of no format that can be loaded", next_step=f"Known: {known}{more}")


def _importer(form: Format) -> Any:
    try:
        return import_module(f"..importers.{form.importer}", __package__)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "mesh":
            raise
        raise ConfigError(
            f"{form.what} needs the package {error.name!r}, which is not installed",
            next_step=f"pip install 'graph-mesh[{form.extra}]'",
        ) from None
