"""import mesh: light, and clear about a file that hides one of our packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mesh
from mesh._import_check import NAMES, check

HOME = Path(mesh.__file__).parent.parent
HEAVY = {"aiohttp", "coordinator", "rich", "safetensors", "tokenizers", "wgpu", "worker", "zeroconf"}


def python(program: str, first: Path) -> subprocess.CompletedProcess[str]:
    """Run a program from the folder `first`, which comes first on its sys.path."""
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=first, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_hides_a_package_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("")
    found = python("import mesh", tmp_path)
    assert found.returncode == 1
    assert f"ImportError: {tmp_path.resolve() / name}.py hides graph-mesh's package {name!r}" in found.stderr


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="'no_such_package' is not in"):
        check(tmp_path, ("no_such_package",))


def test_importing_mesh_loads_nothing_heavy(tmp_path: Path) -> None:
    found = python("import mesh, sys; print(*{name.partition('.')[0] for name in sys.modules})", tmp_path)
    assert found.returncode == 0, found.stderr
    assert not HEAVY & set(found.stdout.split())


def test_numpy_is_numpy_inside_the_package(tmp_path: Path) -> None:
    program = "import mesh, mesh.numpy.elementwise, mesh.core.array; assert mesh.core.array.np.__name__ == 'numpy'"
    assert python(program, tmp_path).returncode == 0
