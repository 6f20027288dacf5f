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

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
