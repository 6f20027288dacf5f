"""Array: what users hold, a name for a tensor expression whose shape and dtype are known at once.

The expression itself is a Tensor (`expression.py`), which never changes; `x[key] = v` gives the name `x` to a new one,
so whatever was made of the old one stays as it was.  Looking at a value (`np.asarray(x)`, `float(x)`, `print(x)`)
computes it and keeps the result in place of the expression.

The functions behind operators and methods live in `mesh.numpy`, which is built on this class; `mesh/numpy/__init__.py`
lists them in `FUNCTIONS`.  This file does not know how an expression is computed (`realise.py`) or shipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike, NDArray

from wire.errors import DTypeError, InputError, ShapeError
from wire.ir.dtypes import C64, C128, F32, F64, DType, dtype_of
from wire.ir.graph import Node, infer
from wire.ir.types import NO_ATTRS, Attrs, TensorType

from ..util.missing_names import IMPORT, missing_name_error
from .array_api_device import DLPACK_CPU, MESH, Device, DeviceLike, check_device
from .expression import Expression, Tensor, computable, made_outside, traced_argument
from .handle import Handle
from .typed import Typed

Operand: TypeAlias = Union["Array", Handle, ArrayLike]
"""What functions take: an Array, a handle, a numpy array, a Python scalar, or nested lists of numbers."""

Axis: TypeAlias = int | Sequence[int] | None

DTypeLike: TypeAlias = npt.DTypeLike | DType | None
"""What functions take for a dtype: what numpy takes for one, or ours; None is the default."""

FUNCTIONS: dict[str, Callable[..., Any]] = {}
DECLINED: Any = NotImplemented  # of an operator: let the other operand try


def _operator(name: str) -> Callable[[Array, Any], Array]:
    return lambda self, other: FUNCTIONS[name](self, other) if isinstance(other, OPERANDS) else DECLINED


def _reflected(name: str) -> Callable[[Array, Any], Array]:
    return lambda self, other: FUNCTIONS[name](other, self) if isinstance(other, OPERANDS) else DECLINED


def _in_place(name: str) -> Callable[[Array, Any], Array]:
    """x += y gives the name x, and with it every name of this same object, to x + y in x's own dtype.

    A Python number that a function was called with is no array: there the variable alone changes.
    """

    def operator(self: Array, other: Any) -> Array:
        if not isinstance(other, OPERANDS):
            return DECLINED  # type: ignore[no-any-return]
        result: Array = FUNCTIONS[name](self, other)
        if self.weak:
            return result
        self._become(_fitting(self.type, result, name))
        return self

    return operator


def _fitting(type: TensorType, result: Array, name: str) -> Array:
    """The result of an operation in place, which keeps shape and dtype; an error where that would lose its kind."""
    if result.type.shape != type.shape:
        raise ShapeError(f"{name} in place would make {type} an array of shape {result.type.shape}")
    if KINDS.index(result.type.dtype.kind) > KINDS.index(type.dtype.kind):
        raise DTypeError(
            f"{name} in place would make {type} {result.type.dtype}", next_step="Write x = x + y in place of x += y"
        )
    return FUNCTIONS["astype"](result, type.dtype)  # type: ignore[no-any-return]


def _prefix(name: str) -> Callable[[Array], Array]:
    return lambda self: FUNCTIONS[name](self)


class Array(Typed):
    """A lazy tensor: its shape and dtype are known at once, and its value is computed when it is needed.

    Operators and methods follow numpy.  Python scalars adapt to the dtype they meet.  Two Arrays of different dtypes
    promote as in the Array API, and an integer with a float takes the float's dtype.

    Parameters
    ----------
    tensor : Tensor
        The expression.  Functions of `mesh.numpy` make arrays; `mnp.asarray` converts one.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh.numpy as mnp
    >>> x = mnp.asarray(np.arange(6.0, dtype=np.float32)).reshape(2, 3)
    >>> y = (x @ x.mT).sum(axis=0)  # nothing is computed yet
    >>> y.shape, y.dtype, np.asarray(y)
    ((2,), dtype('float32'), array([19., 64.], dtype=float32))
    """

    __slots__ = ("__weakref__", "tensor")
    __tree_leaf__ = True
    __array_priority__ = 100  # so that numpy_array + x reaches __radd__

    def __init__(self, tensor: Tensor) -> None:
        """Wrap an expression; for the mesh's own use."""
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), keywords: Any = None) -> Any:
        """Say what to write for a function of torch, which calls this for an array among its tensors."""
        raise InputError(
            f"{getattr(function, '__name__', 'a function')} of torch takes tensors, and was given an array of mesh",
            next_step=f"Use the function of that name in mesh.numpy or mesh.nn, and numpy arrays for tensors. {IMPORT}",
        )

    if not TYPE_CHECKING:  # which would take any name then

        def __getattr__(self, name: str) -> Any:
            raise missing_name_error("mesh.Array", name)

    @property
    def type(self) -> TensorType:  # type: ignore[override]  # read-only here
        """The shape and dtype."""
        return self.tensor.type

    @property
    def weak(self) -> bool:
        """Whether it is made of Python scalars only, and adapts to the dtype it meets."""
        return self.tensor.weak

    @property
    def value(self) -> NDArray[Any] | None:
        """The value if it is known already, else None."""
        return self.tensor.value

    @property
    def T(self) -> Array:
        """All axes reversed; for a matrix, its transpose."""
        return self._call("permute_dims", tuple(reversed(range(self.ndim))))

    @property
    def mT(self) -> Array:
        """The last two axes exchanged."""
        return self._call("matrix_transpose")

    @property
    def real(self) -> Array:
        """The real part."""
        return self._call("real")

    @property
    def imag(self) -> Array:
        """The imaginary part: zeros where x is real."""
        return self._call("imag")

    @property
    def at(self) -> Any:
        """x.at[key].set(v), .add(v), .max(v), .min(v): a new array, changed at x[key] (`mesh/numpy/updates.py`)."""
        return FUNCTIONS["at"](self)

    @property
    def device(self) -> Device:
        """The mesh: where a value is made is the planner's choice, and differs from call to call."""
        return MESH

    def __setitem__(self, key: Any, value: Any) -> None:
        """x[key] becomes `value`, in x's dtype; arrays made of x before stay as they were."""
        self._become(FUNCTIONS["at"](self)[key].set(value))

    # -- operators ----------------------------------------------------------------------------------------

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _operator("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _operator("divide"), _reflected("divide")
    __floordiv__, __rfloordiv__ = _operator("floor_divide"), _reflected("floor_divide")
    __mod__, __rmod__ = _operator("remainder"), _reflected("remainder")
    __pow__, __rpow__ = _operator("pow"), _reflected("pow")
    __matmul__, __rmatmul__ = _operator("matmul"), _reflected("matmul")
    __and__, __rand__ = _operator("bitwise_and"), _reflected("bitwise_and")
    __or__, __ror__ = _operator("bitwise_or"), _reflected("bitwise_or")
    __xor__, __rxor__ = _operator("bitwise_xor"), _reflected("bitwise_xor")
    __lshift__, __rlshift__ = _operator("bitwise_left_shift"), _reflected("bitwise_left_shift")
    __rshift__, __rrshift__ = _operator("bitwise_right_shift"), _reflected("bitwise_right_shift")
    __eq__ = _operator("equal")  # type: ignore[assignment]  # elementwise, as numpy has it
    __ne__ = _operator("not_equal")  # type: ignore[assignment]
    __lt__, __le__ = _operator("less"), _operator("less_equal")
    __gt__, __ge__ = _operator("greater"), _operator("greater_equal")
    __neg__, __pos__ = _prefix("negative"), _prefix("positive")
    __abs__, __invert__ = _prefix("abs"), _prefix("bitwise_invert")
    __iadd__, __isub__ = _in_place("add"), _in_place("subtract")
    __imul__, __imatmul__ = _in_place("multiply"), _in_place("matmul")
    __itruediv__, __ifloordiv__ = _in_place("divide"), _in_place("floor_divide")
    __imod__, __ipow__ = _in_place("remainder"), _in_place("pow")
    __iand__, __ior__, __ixor__ = _in_place("bitwise_and"), _in_place("bitwise_or"), _in_place("bitwise_xor")
    __ilshift__, __irshift__ = _in_place("bitwise_left_shift"), _in_place("bitwise_right_shift")
    __hash__ = None  # type: ignore[assignment]  # equality is elementwise

    def __divmod__(self, other: Operand) -> tuple[Array, Array]:
        return self // other, self % other

    def __rdivmod__(self, other: Operand) -> tuple[Array, Array]:
        return self.__rfloordiv__(other), self.__rmod__(other)

    def __getitem__(self, key: Any) -> Array:
        return self._call("getitem", key)

    def __len__(self) -> int:
        if not self.type.shape:
            raise TypeError("a 0-d array has no length")
        return self.type.shape[0]

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def __round__(self, ndigits: int | None = None) -> Any:
        return round(self._scalar_for("round()").item(), ndigits)

    def __iter__(self) -> Iterator[Array]:
        if not self.type.shape:
            raise TypeError("a 0-d array cannot be iterated over")
        return (self[index] for index in range(len(self)))

    # -- methods, as numpy's ------------------------------------------------------------------------------

    def astype(self, dtype: DTypeLike, *, copy: bool = True) -> Array:
        """Return the elements in another dtype, as `mnp.astype` does."""
        return self._call("astype", dtype, copy=copy)

    def reshape(self, *shape: Any) -> Array:
        """Return the elements in another shape, row-major; one size may be -1, for what is left."""
        return self._call("reshape", shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Array:
        """Return the array with its axes in this order, or reversed."""
        if not axes or axes == (None,):
            return self.T
        return self._call("permute_dims", axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes)

    def squeeze(self, axis: int | Sequence[int] | None = None) -> Array:
        """Return the array without these axes of size 1, or without any such."""
        return self._call("squeeze", axis)

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        """Return the array with two axes exchanged."""
        return self._call("swapaxes", axis1, axis2)

    def ravel(self) -> Array:
        """Return the elements in one axis, row-major."""
        return self._call("reshape", -1)

    def flatten(self) -> Array:
        """Return the elements in one axis, row-major."""
        return self._call("reshape", -1)

    # `out` is there for numpy's own functions, which pass it on: np.sum(x) is x.sum()

    def sum(self, axis: Axis = None, dtype: DTypeLike = None, out: None = None, *, keepdims: bool = False) -> Array:
        """Return the sum over the axes, or over all."""
        return self._reduced("sum", out, axis=axis, dtype=dtype, keepdims=keepdims)

    def prod(self, axis: Axis = None, dtype: DTypeLike = None, out: None = None, *, keepdims: bool = False) -> Array:
        """Return the product over the axes, or over all."""
        return self._reduced("prod", out, axis=axis, dtype=dtype, keepdims=keepdims)

    def max(self, axis: Axis = None, out: None = None, *, keepdims: bool = False) -> Array:
        """Return the largest element over the axes, or over all."""
        return self._reduced("max", out, axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, out: None = None, *, keepdims: bool = False) -> Array:
        """Return the smallest element over the axes, or over all."""
        return self._reduced("min", out, axis=axis, keepdims=keepdims)

    def mean(self, axis: Axis = None, dtype: DTypeLike = None, out: None = None, *, keepdims: bool = False) -> Array:
        """Return the mean over the axes, or over all."""
        return self._as(dtype)._reduced("mean", out, axis=axis, keepdims=keepdims)

    def var(
        self,
        axis: Axis = None,
        dtype: DTypeLike = None,
        out: None = None,
        ddof: float = 0,
        *,
        correction: float = 0,
        keepdims: bool = False,
    ) -> Array:
        """Return the variance over the axes, or over all; `ddof` and `correction` lessen the number of elements."""
        return self._as(dtype)._reduced("var", out, axis=axis, correction=correction, ddof=ddof, keepdims=keepdims)

    def std(
        self,
        axis: Axis = None,
        dtype: DTypeLike = None,
        out: None = None,
        ddof: float = 0,
        *,
        correction: float = 0,
        keepdims: bool = False,
    ) -> Array:
        """Return the standard deviation over the axes, or over all; `ddof` and `correction` as for `var`."""
        return self._as(dtype)._reduced("std", out, axis=axis, correction=correction, ddof=ddof, keepdims=keepdims)

    def any(self, axis: Axis = None, out: None = None, *, keepdims: bool = False) -> Array:
        """Return whether an element is true, over the axes or over all."""
        return self._reduced("any", out, axis=axis, keepdims=keepdims)

    def all(self, axis: Axis = None, out: None = None, *, keepdims: bool = False) -> Array:
        """Return whether every element is true, over the axes or over all."""
        return self._reduced("all", out, axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Array:
        """Return the int32 position of the first largest element along the axis, or in the flattened array."""
        return self._call("argmax", axis=axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Array:
        """Return the int32 position of the first smallest element along the axis, or in the flattened array."""
        return self._call("argmin", axis=axis, keepdims=keepdims)

    def clip(self, min: Operand | None = None, max: Operand | None = None) -> Array:
        """Return the elements within bounds: smaller ones become `min`, larger ones `max`."""
        return self._call("clip", min, max)

    def round(self, decimals: int = 0) -> Array:
        """Return the elements rounded to `decimals` decimals; halves go to the even neighbour."""
        return self._call("round", decimals)

    def take(self, indices: Operand, axis: int | None = None) -> Array:
        """Return the elements at these positions along the axis, or in the flattened array."""
        return self._call("take", indices, axis=axis)

    def repeat(self, repeats: Any, axis: int | None = None) -> Array:
        """Return each element repeated along the axis, or in the flattened array."""
        return self._call("repeat", repeats, axis=axis)

    def sort(self, axis: int = -1) -> None:
        """Sort this array in place, as numpy's method does; `mnp.sort` returns a new one."""
        self._become(FUNCTIONS["sort"](self, axis))

    def argsort(self, axis: int | None = -1) -> Array:
        """Return the int32 positions that sort the array along the axis, or the flattened array."""
        return self._call("argsort", axis)

    def cumsum(self, axis: int | None = None, dtype: DTypeLike = None) -> Array:
        """Return the sum of each element and all before it along the axis, or in the flattened array."""
        return self._call("cumsum", axis, dtype)

    def cumprod(self, axis: int | None = None, dtype: DTypeLike = None) -> Array:
        """Return the product of each element and all before it along the axis, or in the flattened array."""
        return self._call("cumprod", axis, dtype)

    def nonzero(self) -> tuple[Array, ...]:
        """Return the int32 positions of the elements that are not zero, by axis; the values must be known."""
        result: tuple[Array, ...] = FUNCTIONS["nonzero"](self)
        return result

    def copy(self) -> Array:
        """Return an array of the same value, which `x[key] = v` does not change."""
        return renamed(self)

    def conj(self) -> Array:
        """Return the complex conjugate."""
        return self._call("conj")

    # -- values -------------------------------------------------------------------------------------------

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        value = self._value_for("np.asarray()")
        return np.array(value, dtype=dtype, copy=copy)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The value for another library, without a copy where it knows of memory that is only read (DLPack 1.0)."""
        value = self._value_for("__dlpack__()")
        if max_version is not None and max_version >= (1, 0):
            return value.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
        if copy is False:
            raise BufferError("an array of the mesh is read only, which needs DLPack 1.0 or a copy")
        return value.copy().__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return DLPACK_CPU  # values come to this process

    def to_device(self, device: DeviceLike, /, *, stream: Any = None) -> Array:
        """This array, as every device is the mesh; InputError for any other."""
        check_device(device)
        return renamed(self)

    def __float__(self) -> float:
        return float(self._real_for("float()"))

    def __int__(self) -> int:
        return int(self._real_for("int()"))

    def __index__(self) -> int:
        if self.type.dtype.kind not in "iu" or self.type.shape:
            raise TypeError(f"only a 0-d integer array is an index, got {self.type}")
        return int(self._scalar_for("an index or range()"))

    def __bool__(self) -> bool:
        return bool(self._scalar_for("if, while, and, or, not, or bool()"))

    def __complex__(self) -> complex:
        return complex(self._scalar_for("complex()"))

    def item(self) -> bool | int | float | complex:
        """The one element, as a Python scalar."""
        result: bool | int | float | complex = self._scalar_for("item()").item()
        return result

    def tolist(self) -> Any:
        """The values as nested lists of Python scalars."""
        return self._value_for("tolist()").tolist()

    def __format__(self, spec: str) -> str:
        return format(self._scalar_for("format()").item(), spec) if spec else str(self)

    def __repr__(self) -> str:
        if self.value is None and not (self.type.size <= SHOWN_ELEMENTS_MAX and computable(self.tensor)):
            return f"Array({self.type})"
        shown = np.array2string(self._value_for("repr()"), separator=", ", prefix="Array(")
        return f"Array({shown}, dtype={self.type.dtype.numpy})"

    def __copy__(self) -> Array:
        return renamed(self)

    def __deepcopy__(self, memo: Any) -> Array:
        return renamed(self)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """`mesh.numpy`, as the Array API standard asks."""
        if api_version not in (None, *API_VERSIONS):
            raise InputError(
                f"the Array API version {api_version!r} is not known", next_step=f"Known: {', '.join(API_VERSIONS)}"
            )
        return FUNCTIONS["namespace"]()

    def _become(self, other: Array) -> None:
        """Give this name to another expression."""
        if made_outside(self.tensor):
            raise InputError(
                f"an array ({self.type}) made outside of a traced function would be changed inside, once and for all",
                next_step="Return the new array from the function, or change a copy: x = mnp.copy(x)",
            )
        self.tensor = other.tensor

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Array:
        result: Array = FUNCTIONS[name](self, *args, **kwargs)
        return result

    def _reduced(self, name: str, out: None, **kwargs: Any) -> Array:
        if out is not None:
            raise InputError(f"{name} has no out=", next_step="Write out[...] = x." + name + "()")
        return self._call(name, **kwargs)

    def _as(self, dtype: DTypeLike) -> Array:
        return self if dtype is None else self.astype(dtype)

    def _scalar_for(self, asker: str) -> Any:
        if self.type.size != 1:
            raise TypeError(f"{asker} needs an array of one element, got {self.type}")
        return self._value_for(asker).reshape(())[()]

    def _real_for(self, asker: str) -> Any:
        if self.type.dtype.kind == "c":
            raise TypeError(f"{asker} needs a real number, got {self.type}; take .real, .imag or abs()")
        return self._scalar_for(asker)

    def _value_for(self, asker: str) -> NDArray[Any]:
        from .realise import realise

        tensor = self.tensor
        if tensor.value is None:
            realise([self], asker)
        assert tensor.value is not None
        return tensor.value


WIDER = {F32: F64, C64: C128}  # what holds the floats of Python, for their default dtypes
KINDS = "buifc"  # of dtypes; a value can be stored as any later kind
API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
OPERANDS = (Array, Handle, np.ndarray, np.generic, bool, int, float, complex, list, tuple)
SHOWN_ELEMENTS_MAX = 1000  # a repr computes no more than this


def apply(op: str, *inputs: Array, **attrs: Any) -> Array:
    """The Array `op(*inputs, **attrs)`; GraphError (ShapeError, DTypeError, AttrError) if they do not fit."""
    attributes = Attrs(attrs) if attrs else NO_ATTRS
    operands = tuple([array.tensor for array in inputs])
    result = infer(Node(op, (), attributes), [operand.type for operand in operands])
    weak = bool(operands) and all(operand.weak for operand in operands)
    return made_of(Expression(op, operands, attributes), result, weak)


def made_of(expression: Expression, type: TensorType, weak: bool) -> Array:
    """The Array of an expression; a `weak` one, of Python's numbers alone, has their full precision too."""
    op, operands, attrs, *_ = expression
    return Array(Tensor(expression, type, weak, None, _widened(op, operands, attrs, type) if weak else None))


def literal(value: Any, dtype: DType, weak: bool = False) -> Array:
    """A constant that is part of the program: a Python scalar or a small table of numbers."""
    with np.errstate(over="ignore"):  # too large for a float dtype: infinite, as in any other arithmetic
        array = np.array(value, dtype.numpy)
    array.flags.writeable = False
    wide = literal(value, WIDER[dtype], True).tensor if weak and dtype in WIDER else None
    return Array(Tensor(Expression("const", (), NO_ATTRS), TensorType(array.shape, dtype), weak, array, wide))


def value_array(value: NDArray[Any], shared: bool = False) -> Array:
    """An Array of a numpy array's present values; copied where the caller could still change them.

    With `shared` the caller promises not to.
    """
    dtype = dtype_of(value)
    fixed = np.asarray(value, dtype.numpy, order="C").reshape(value.shape)
    if shared:
        fixed = fixed.view()
        fixed.flags.writeable = False
    elif _writeable(fixed):
        fixed = fixed.copy() if np.may_share_memory(fixed, value) else fixed
        fixed.flags.writeable = False
    return Array(Tensor(None, TensorType(fixed.shape, dtype), False, fixed))


def handle_array(handle: Handle) -> Array:
    """An Array of a tensor on the mesh."""
    return Array(Tensor(Expression("param", (), NO_ATTRS, handle), handle.type))


def argument(kind: str, name: str, type: TensorType, weak: bool = False, widens: bool = False) -> Array:
    """A traced argument: it has a type and a name but no value; `kind` is "input" or "param".

    One that `widens` is a Python float, which is passed as f64 where the function needs that.
    """
    attrs = Attrs({"name": name, "shape": type.shape, "dtype": type.dtype.name})
    wider = TensorType(type.shape, WIDER[type.dtype]) if widens and type.dtype in WIDER else None
    wide = argument(kind, name, wider, True).tensor if wider else None
    return Array(Tensor(Expression(kind, (), attrs), type, weak, None, wide))


def renamed(array: Array) -> Array:
    """The same values under a name of their own: changing one of the two does not change the other."""
    if made_outside(array.tensor):  # an expression of the traced function's own, so that it may be changed there
        return apply("reshape", array, shape=array.type.shape)
    return Array(array.tensor)


def strong(array: Array) -> Array:
    """`array` with a dtype that it insists on: somebody asked for it."""
    return weakened(array, False)


def weakened(array: Array, weak: bool) -> Array:
    """`array` as one that adapts to the dtype it meets, or does not."""
    tensor, expression = array.tensor, array.tensor.expression
    if tensor.weak == weak:
        return array
    wide = tensor.wide
    if weak and expression is not None:
        wide = _widened(expression.op, expression.inputs, expression.attrs, tensor.type)
    if traced_argument(tensor) is not None:  # an argument is known by its Tensor, and a copy would be no argument
        expression = Expression("cast", (tensor,), Attrs({"dtype": tensor.type.dtype.name}))
    return Array(Tensor(expression, tensor.type, weak, tensor.value, wide if weak else None))


def _widened(op: str, operands: Sequence[Tensor], attrs: Attrs, type: TensorType) -> Tensor | None:
    """What `op` gives of the same Python numbers at their full precision; None where that is no other."""
    dtype = WIDER.get(type.dtype)
    if dtype is None or op in ("bitcast", "composite"):  # whose bits, and whose body, are of the dtype itself
        return None
    wider = tuple([operand.wide or operand for operand in operands])
    if op != "cast" and any(operand.type.dtype in WIDER for operand in wider):
        return None
    attributes = Attrs({**attrs, "dtype": dtype.name}) if op == "cast" else attrs
    return Tensor(Expression(op, wider, attributes), TensorType(type.shape, dtype), True)


def _writeable(array: NDArray[Any]) -> bool:
    """True if anyone could still change the memory: an array or any array it is a view of is writeable."""
    view: Any = array
    while isinstance(view, np.ndarray):
        if view.flags.writeable:
            return True
        view = view.base
    return False
