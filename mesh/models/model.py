"""Model: a loaded model, a pure function of named inputs and of params that stay where they are.

    model = mesh.load("model.onnx")
    y = mesh.run(model, x)                  # or {"x": x}; one output is an array, several are a dict by name
    y = model(x)                            # lazily, on the mesh in use or in this process

Importers make Models (`load.py` chooses the importer).  A Model is traced like a function, once for each set of shapes,
whoever asks; its params are the graph's params, hashed once and sent once to the workers that need them, and its inputs
keep the names that the file gave them.  `params` are what training changes; `buffers` are tensors that are read as they
are (the statistics of a BatchNorm, tables, whatever a module has frozen).  An input whose values decide about shapes (a
Reshape's target, say) is a static input: it is read at every call, and other values make another graph.  This file
knows no file format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wire.cached_property import cached_property
from wire.errors import InputError
from wire.ir.codec import hash_array
from wire.ir.dtypes import DType, dtype_of
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType
from wire.lru_cache import Latest

from ..core.array import Array, argument, handle_array
from ..core.expression import computable
from ..core.handle import Handle
from ..core.typed import Typed
from ..numpy.promotion import INT_BOUNDS, as_numpy, asarray
from ..tracing.trace import graph_of
from ..util.annotation_checks import checked
from ..util.argument_checks import value_text
from ..util.did_you_mean import names_checked
from ..util.missing_names import missing_name_error
from ..util.units import counted
from .decoder import EncoderMetadata, Text

Value = Array | NDArray[Any]
Arrays = dict[str, NDArray[Any]]
Prompt = str | Sequence[int] | NDArray[Any]  # a text, or tokens
Stop = str | int | Sequence[str | int] | None
Function = Callable[[Mapping[str, Array], Mapping[str, Value]], Mapping[str, Array]]
"""From params and inputs to outputs, each by name; static inputs come as numpy arrays, all others as Arrays."""

NAMED_MAX = 8  # of what is in a file and may be given, in an error
GRAPHS_COUNT, GRAPHS_BYTES = 128, 256 << 20  # of one function or model, for the shapes it was called with last


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input of a model.

    Parameters
    ----------
    name : str
        Its name.
    dtype : DType
        The dtype of its elements.
    shape : tuple of int or str
        Its dimensions; one with a name is free, and has the same size wherever the name stands.
    static : bool, optional
        Whether its values decide about shapes, so that other values make another graph.
    optional : bool, optional
        Whether it may be left out.
    origin : str, optional
        Where it stands among the arguments that the model was made from, if that is another name.

    Examples
    --------
    >>> from mesh.models.model import InputSpec
    >>> from wire.ir.dtypes import F32
    >>> print(InputSpec("x", F32, ("batch", 2)).sized({"batch": 8}))
    f32[8,2]
    """

    name: str
    dtype: DType
    shape: tuple[int | str, ...]
    static: bool = False
    optional: bool = False
    origin: str = ""  # where it stands among the arguments that the model was made from, if that is another name

    @checked
    def sized(self, dims: Mapping[str, int]) -> InputSpec:
        """Give free dimensions a size.

        Parameters
        ----------
        dims : mapping of str to int
            Sizes by the names of dimensions.

        Returns
        -------
        InputSpec
            The input with these sizes.
        """
        return replace(self, shape=tuple([dims.get(dim, dim) if isinstance(dim, str) else dim for dim in self.shape]))

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]" + (f", {self.origin}" if self.origin else "")


class Model:
    """A pure function of named inputs, with its params; a model does not change.

    `mesh.load` makes them.  Called with its inputs by place or by name, a model gives lazy arrays: one output as it is,
    several
    as a dict by name.

    Parameters
    ----------
    name : str
        What messages call it.
    function : callable
        `function(params, inputs)` gives the outputs; all three are mappings by name.
    inputs : sequence of InputSpec
        The inputs, in their order.
    outputs : sequence of str
        The names of the outputs, in their order.
    params : mapping of str to ndarray
        What training changes.
    text : Text, optional
        How it goes on with texts, for a causal language model.
    buffers : mapping of str to ndarray, optional
        Tensors that are read as they are, such as the statistics of a BatchNorm.
    tied : mapping of str to str, optional
        Other names of params.
    hint : str, optional
        What to do if inputs do not fit.
    matrices : mapping of str to str, optional
        The params that may be packed (`mesh.quantise`): "matrix" (out, in), "transposed" (in, out) or "table", whose
        rows are looked up, too.

    Raises
    ------
    InputError
        If a call's input is missing, unknown or does not fit; it names the input.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> from mesh.models.model import InputSpec
    >>> from wire.ir.dtypes import F32
    >>> x = InputSpec("x", F32, ("batch", 2))
    >>> def function(params, inputs):
    ...     return {"y": inputs["x"] @ params["w"]}
    >>> model = mesh.Model("line", function, [x], ["y"], {"w": np.ones((2, 1), np.float32)})
    >>> model(np.array([[1, 2]], np.float32))
    Array([[3.]], dtype=float32)
    >>> model.apply({"w": np.zeros((2, 1), np.float32)}, x=np.array([[1, 2]], np.float32))
    Array([[0.]], dtype=float32)
    >>> model.free, model.sized({"batch": 4}).free
    (('batch',), ())
    >>> inputs = model.given([[[1, 2]]])
    >>> inputs["x"].dtype, model.dynamic(inputs).keys() == inputs.keys()
    (dtype('float32'), True)
    >>> model.key(inputs) == model.key(model.given([[[3, 4]]]))
    True
    >>> len(model.graph(inputs).outputs), model.arranged({"y": 1})
    (1, 1)
    """

    __tree_leaf__ = True

    @checked
    def __init__(
        self,
        name: str,
        function: Function,
        inputs: Sequence[InputSpec],
        outputs: Sequence[str],
        params: Mapping[str, NDArray[Any]],
        text: Text | None = None,
        *,
        buffers: Mapping[str, NDArray[Any]] | None = None,
        tied: Mapping[str, str] | None = None,
        hint: str = "",
        matrices: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.params = params
        self.buffers = buffers if buffers is not None else {}
        self.tied = tied if tied is not None else {}
        self.text = text
        self.encoder: EncoderMetadata | None = None  # of a file that tells how its texts are embedded
        self.positions_max: int | None = None  # how many tokens a text may have, where the model limits it
        self.hint = hint
        self.matrices = matrices if matrices is not None else {}
        self.defaults: tuple[InputSpec, ...] = ()  # what is in a file and may be given by name in its place
        self._function = function
        self._graphs: Latest[Hashable, WireGraph] = Latest(GRAPHS_COUNT, GRAPHS_BYTES)

    if not TYPE_CHECKING:  # which would take any name then

        def __getattr__(self, name: str) -> Any:
            raise missing_name_error("mesh.Model", name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The outputs as lazy Arrays; InputError naming the input that is missing, unknown or does not fit."""
        return self._applied({}, args, named)

    def apply(self, params: Mapping[str, Any], *args: Any, **named: Any) -> Any:
        """Compute the outputs with other params: what a loss that is to be trained calls.

        Parameters
        ----------
        params : mapping of str to array_like
            All params by their names; buffers stay the model's own.
        *args : array_like
            The inputs by place, or one mapping of them by name.
        **named : array_like
            The inputs by name.

        Returns
        -------
        Array or dict of str to Array
            The output, or several by name.

        Raises
        ------
        InputError
            If a param is missing or unknown, or an input does not fit.
        """
        self._check_names(params)
        return self._applied(params, args, named)

    def _applied(self, params: Mapping[str, Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The outputs with these tensors in place of its own."""
        given = self.given(args, named)
        static = {spec.name for spec in self._specs if spec.static}
        arrays = {name: value if name in static else asarray(value) for name, value in given.items()}
        own = {name: asarray(params[name]) if name in params else handle_array(handle)
               for name, handle in self.handles.items() if name not in arrays}  # fmt: skip
        return self.arranged(self._function(own, arrays))

    @names_checked
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Stop = None,
        ends: int | Iterable[int] | None = None,
        stream: bool = False,
        mesh: Any = None,
        strategy: str = "auto",
    ) -> Any:
        """Go on with prompts.

        Parameters
        ----------
        prompts : str, sequence of int, or sequence of these
            A text or a list of tokens, or several.
        max_new_tokens : int, optional
            How many tokens follow at most: by default 128, or as many as the model has positions for.
        temperature : float, optional
            0 takes the likeliest token; else logits are divided by it, and a token is drawn.
        top_k : int, optional
            How many of the likeliest tokens are drawn from; 0 for all.
        top_p : float, optional
            The probability that the tokens which are drawn from have together, of what top_k left; 1 for all.
        seed : int, optional
            The seed of the draws; prompt i of several is drawn by `seed + i`.
        stop : str, int or sequence of these, optional
            Texts before which an answer ends, and tokens at which it ends.
        ends : int or iterable of int, optional
            The tokens that end an answer; by default the model's own.
        stream : bool, optional
            Whether to give pieces as they come; of pairs (place, piece) for several prompts.
        mesh : Mesh, optional
            Where to compute; in this process by default.
        strategy : str, optional
            How a step is placed, as for `Mesh.run`.

        Returns
        -------
        str, list of int, list of these, or iterator of pieces
            What is new: text for a text, tokens for tokens.

        Raises
        ------
        InputError
            If it is no causal language model, or a prompt has tokens that it does not have, or more than it has
            positions for.
        ConfigError
            If a prompt is text and the package tokenizers is not installed.

        Notes
        -----
        top_p: Holtzman et al., 2020 (arXiv 1904.09751).

        Examples
        --------
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import mesh
        >>> from mesh.models.decoder import Decoder, Text
        >>> following = {"rows": np.roll(np.eye(5, dtype=np.float32), 1, axis=1)}  # token 1 follows 0, and so on
        >>> embed, head = lambda params, ids, at: params["rows"][ids], lambda params, x: x
        >>> decoder = Decoder(embed, print, head, (), 1, 1, None, "rows")
        >>> model = mesh.Model("count", print, [], [], following, Text(decoder, Path(), ends=(4,)))
        >>> model.generate([1], max_new_tokens=6)
        [2, 3, 4]
        >>> model.generate([[0], [2]], max_new_tokens=2)
        [[1, 2], [3, 4]]
        """
        from ..inference.generate import generate
        from ..inference.replies import Request

        request = Request(max_new_tokens, temperature, top_k, top_p, seed, stop, ends)
        return generate(self, prompts, request, stream, mesh, strategy)

    def __repr__(self) -> str:
        takes = ", ".join(f"{spec.name}: {spec}" for spec in self.inputs)
        return f"Model({self.name or 'unnamed'}: {takes} -> {', '.join(self.outputs)})"

    @property
    def free(self) -> tuple[str, ...]:
        """The names of the dimensions that may have any size, in the order of the inputs."""
        return tuple(dict.fromkeys(dim for spec in self.inputs for dim in spec.shape if isinstance(dim, str)))

    def sized(self, dims: Mapping[str, int]) -> Model:
        """Give free dimensions a size.

        Parameters
        ----------
        dims : mapping of str to int
            Sizes by the names of dimensions.

        Returns
        -------
        Model
            The same model with these sizes.

        Raises
        ------
        InputError
            If there is no such free dimension, or a size is no count.
        """
        if not isinstance(dims, Mapping):
            raise InputError(f"dims are sizes by name, got {dims!r:.40}", next_step="Write dims={'batch': 1}, say")
        for name, size in dims.items():
            if name not in self.free:
                model, known = self.name or "the model", ", ".join(self.free) or "none"
                raise InputError(f"{model} has no free dimension {name!r}", next_step=f"It has: {known}")
            if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 0:
                raise InputError(f"the dimension {name!r} is a count, got {size!r}")
        sized = copy(self)
        sized.inputs = tuple([spec.sized({name: int(size) for name, size in dims.items()}) for spec in self.inputs])
        return sized

    def trained(self, params: Mapping[str, Any]) -> Model:
        """Replace the params.

        Parameters
        ----------
        params : mapping of str to array_like
            Params of the same names, shapes and dtypes.

        Returns
        -------
        Model
            The same function with these params.

        Raises
        ------
        InputError
            If a param is missing, unknown or does not fit.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> from mesh.models.model import InputSpec
        >>> from wire.ir.dtypes import F32
        >>> x = InputSpec("x", F32, ("batch", 2))
        >>> def function(params, inputs):
        ...     return {"y": inputs["x"] @ params["w"]}
        >>> model = mesh.Model("line", function, [x], ["y"], {"w": np.ones((2, 1), np.float32)})
        >>> model.trained({"w": np.zeros((2, 1), np.float32)})(np.ones((1, 2), np.float32))
        Array([[0.]], dtype=float32)
        """
        self._check_names(params)
        named = {name: as_numpy(params[name], f"the param {name!r}") for name in self.params}
        for name, array in self.params.items():
            wanted, kind = (TensorType(param.shape, dtype_of(param)) for param in (array, named[name]))
            if wanted != kind:
                raise InputError(f"the param {name!r} is {kind}, expected {wanted}")
        trained = Model(
            self.name, self._function, self.inputs, self.outputs, named, self.text,
            buffers=self.buffers, tied=self.tied, hint=self.hint, matrices=self.matrices,
        )  # fmt: skip
        trained.defaults = self.defaults
        return trained

    @property
    def _specs(self) -> tuple[InputSpec, ...]:
        """All that a call may give."""
        return (*self.inputs, *self.defaults)

    @property
    def weights(self) -> dict[str, NDArray[Any]]:
        """The params and the buffers by name."""
        return {**self.params, **self.buffers}

    @cached_property
    def handles(self) -> dict[str, Handle]:
        """The params and buffers, hashed the first time somebody asks; mapped files stay mapped."""
        return {name: _handle(name, array) for name, array in self.weights.items()}

    @checked
    def given(self, args: Sequence[Any], named: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Check arguments, and give them the names of the inputs.

        Parameters
        ----------
        args : sequence
            Inputs by place, or one mapping.
        named : mapping of str to array_like, optional
            Inputs by name.

        Returns
        -------
        dict of str to array_like
            All inputs by name.

        Raises
        ------
        InputError
            If an input is missing, unknown, given twice or does not fit.
        """
        values = dict(named or {})
        if len(args) == 1 and isinstance(args[0], Mapping):
            values, args = {**args[0], **values}, ()
        names = [spec.name for spec in self.inputs]
        if len(args) > len(names):
            raise InputError(f"the model takes {counted(len(names), 'input')} ({', '.join(names)}), got {len(args)}")
        for name, value in zip(names, args, strict=False):
            if name in values:
                raise InputError(f"the input {name!r} is given twice")
            values[name] = value
        unknown = sorted(values.keys() - {spec.name for spec in self._specs})
        if unknown:
            raise InputError(f"the model has no input {unknown[0]!r}", next_step=f"It takes: {self._takes}")
        missing = [spec for spec in self.inputs if spec.name not in values and not spec.optional]
        if missing:
            raise InputError(f"the input {missing[0].name!r} ({missing[0]}) is missing")
        sizes: dict[str, int] = {}
        try:
            return {spec.name: _fitting(spec, values[spec.name], sizes) for spec in self._specs if spec.name in values}
        except InputError as error:
            error.next_step = error.next_step or self.hint
            raise

    @checked
    def key(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """The value that two calls share exactly when one graph serves both.

        Parameters
        ----------
        given : mapping of str to array_like
            The inputs by name, as `given` gives them.

        Returns
        -------
        tuple
            Names, dtypes and shapes, and the values of static inputs.
        """
        return tuple(
            (spec.name, spec.dtype, given[spec.name].shape, given[spec.name].tobytes() if spec.static else b"")
            for spec in self._specs
            if spec.name in given
        )

    @checked
    def graph(self, given: Mapping[str, Any], remember: bool = True) -> WireGraph:
        """Trace the graph for inputs like these, or give the one that was traced.

        Parameters
        ----------
        given : mapping of str to array_like
            The inputs by name; anything with a shape will do for one that is not static.
        remember : bool, optional
            Whether to keep the latest graphs.

        Returns
        -------
        WireGraph
            The graph, whose inputs are those that are not static.
        """
        if not remember:
            return self._traced(given)
        key = self.key(given)
        graph = self._graphs.get(key)
        if graph is None:
            traced = self._traced(given)
            graph = self._graphs.keep(key, traced, traced.memory_bytes)
        return graph

    def _traced(self, given: Mapping[str, Any]) -> WireGraph:
        arguments = {
            spec.name: given[spec.name]
            if spec.static
            else argument("input", spec.name, TensorType(tuple(given[spec.name].shape), spec.dtype))
            for spec in self._specs
            if spec.name in given
        }
        own = {name: handle for name, handle in self.handles.items() if name not in given}
        params = {name: argument("param", name, handle.type) for name, handle in own.items()}
        declared = [array.tensor for array in (*arguments.values(), *params.values()) if isinstance(array, Array)]
        outputs = self._function(params, arguments)
        graph, _ = graph_of(declared, [outputs[name] for name in self.outputs], self.outputs, self.name)
        return graph

    @checked
    def dynamic(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Choose the inputs that a graph takes.

        Parameters
        ----------
        given : mapping of str to array_like
            The inputs by name, as `given` gives them.

        Returns
        -------
        dict of str to array_like
            All that are not static.
        """
        return {spec.name: given[spec.name] for spec in self._specs if spec.name in given and not spec.static}

    @property
    def _takes(self) -> str:
        """The names that a call may give, for people."""
        needed = ", ".join(f"{spec.name} ({spec.origin})" if spec.origin else spec.name for spec in self.inputs)
        names = [spec.name for spec in self.defaults]
        others = ", ".join(names if len(names) <= NAMED_MAX else [*names[:NAMED_MAX], "..."])
        return f"{needed}; and in place of values in the file: {others}" if others else needed

    def _check_names(self, params: Mapping[str, Any]) -> None:
        """Raise InputError if a param is missing or unknown."""
        model = self.name or "the model"
        if not isinstance(params, Mapping):
            raise InputError(f"the params of {model} are a dict of arrays by name, not {value_text(params)}")
        missing = next((name for name in self.params if name not in params), None)
        if missing is not None:
            raise InputError(f"{model} has a param {missing!r}, which is missing")
        strange = next((name for name in params if name not in self.params), None)
        if strange is None:
            return
        if strange in self.tied:
            raise InputError(
                f"{strange!r} is the same weight as {self.tied[strange]!r}", next_step="Give that one alone"
            )
        if strange in self.buffers:
            raise InputError(f"{strange!r} is a buffer of {model}, and no param", next_step="Give model.params alone")
        raise InputError(f"{model} has no param {strange!r}", next_step="Give params by the names in model.params")

    @checked
    def arranged(self, outputs: Mapping[str, Any]) -> Any:
        """Arrange the outputs as a call gives them.

        Parameters
        ----------
        outputs : mapping of str to Any
            The outputs by name.

        Returns
        -------
        Any
            One output as it is, several as a dict in the model's order.
        """
        return outputs[self.outputs[0]] if len(self.outputs) == 1 else {name: outputs[name] for name in self.outputs}


def parted(weights: Mapping[str, NDArray[Any]], fixed: Collection[str] = ()) -> tuple[Arrays, Arrays]:
    """Params and buffers of named arrays; what is named in `fixed`, integers and bools are not trained."""
    buffers = {name: array for name, array in weights.items() if name in fixed or dtype_of(array).kind in "iub"}
    return {name: array for name, array in weights.items() if name not in buffers}, buffers


def _handle(name: str, array: NDArray[Any]) -> Handle:
    fixed = np.ascontiguousarray(array).reshape(array.shape)
    if fixed.flags.writeable:
        fixed = fixed.copy() if fixed is array or fixed.base is not None else fixed
        fixed.flags.writeable = False
    return Handle(hash_array(fixed), TensorType(array.shape, dtype_of(array)), name, fixed)


def _as_integers(name: str, value: Any, dtype: DType) -> Any:
    """Integers of another width as the model has them: tokenizers give 64 bits, files ask for either."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu" or dtype.kind not in "iu":
        return value
    low, high = INT_BOUNDS[dtype.name]
    for extreme in (value.min(), value.max()) if value.size else ():
        if not low <= extreme <= high:
            raise InputError(f"the input {name!r} has {extreme}, which {dtype.name} cannot hold")
    return value.astype(dtype.numpy, copy=False)


def _fitting(spec: InputSpec, value: Any, sizes: dict[str, int]) -> Any:
    """The value as the model takes it; Python's numbers and lists get the input's dtype."""
    typed = hasattr(value, "shape") and hasattr(value, "dtype")
    if not typed:
        try:
            value = np.asarray(value, spec.dtype.numpy)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"the input {spec.name!r} is no {spec}", cause=str(error)) from None
    if spec.static and isinstance(value, Array) and not computable(value.tensor):
        raise InputError(
            f"the input {spec.name!r} decides about shapes, and has no value while a function is traced",
            next_step="Call the model with a value that is no argument of the function",
        )
    if spec.static or not isinstance(value, Typed):
        value = as_numpy(value, f"the input {spec.name!r}")
    value = _as_integers(spec.name, value, spec.dtype)
    shape = tuple(value.shape)
    fits = len(shape) == len(spec.shape) and dtype_of(value.dtype) is spec.dtype
    if not fits or any(
        sizes.setdefault(d, n) != n if isinstance(d, str) else d != n for d, n in zip(spec.shape, shape, strict=True)
    ):
        known = "".join(f", {name} = {size}" for name, size in sizes.items() if name in spec.shape)
        dtype = dtype_of(value.dtype)
        raise InputError(
            f"the input {spec.name!r} is {dtype.name}{list(shape)}, expected {spec}{known}",
            next_step="" if dtype is spec.dtype else f"Convert it: {spec.name}.astype({spec.dtype.numpy.name!r})",
        )
    return value
