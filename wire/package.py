"""The package as it is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """This distribution's version, or "0+source" where it is not installed."""
    try:
        return version("graph-mesh")
    except PackageNotFoundError:
        return "0+source"
