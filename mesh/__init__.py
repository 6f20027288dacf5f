"""mesh: describe a computation once, run it on whatever machines you own.

    import mesh
    import mesh.numpy as mnp

    graph = mesh.trace(lambda x, w: mnp.tanh(x @ w), x, w)

This is all that users import; wire, worker and coordinator are its machinery.

Each name is imported when it is first used (SPEC 1 of Scientific Python), so that the daemons, which need few of them,
start fast.  `__init__.pyi` is the list of them.
"""

import lazy_loader

from . import _import_check as _import_check  # it explains why another import would fail

_named, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """A name of the stub, imported now; AttributeError that says what to write in place of one that is not there."""
    if name in __all__:
        return _named(name)
    from .util.missing_names import missing_name_error

    raise missing_name_error(__name__, name)
