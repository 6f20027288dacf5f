"""cached_property as Python 3.12 has it, without a lock.

That of Python 3.11 holds one lock for each property of a class, whatever the object, while the value is computed.  Two
threads that compute properties which need one another's then wait for each other for ever.  Here two threads may both
compute a value, and the last one is kept.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info >= (3, 12):
    cached_property = functools.cached_property
else:

    class cached_property:
        """A property that is computed once, and kept in the object's `__dict__`."""

        def __init__(self, compute):
            self.compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = instance.__dict__[self.name] = self.compute(instance)
            return value


__all__ = ["cached_property"]
