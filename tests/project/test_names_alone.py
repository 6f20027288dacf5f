"""Every name of `mesh` can be the first that a program uses: names are imported when they are used, in any order."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import mesh

# Each name's module as in a new process, which one process does for all of them.
ALONE = """
import importlib, json, sys
failed = {}
for name in json.loads(sys.argv[1]):
    for each in [each for each in sys.modules if each.split(".")[0] == "mesh"]:
        del sys.modules[each]
    try:
        getattr(importlib.import_module("mesh"), name)
    except ImportError as error:
        failed[name] = str(error)
print(json.dumps(failed))
"""


def test_every_module_can_be_the_first() -> None:
    stub = ast.parse(Path(mesh.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    names = {each.asname or each.name for node in imports if node.module is None for each in node.names}
    names |= {node.names[0].asname or node.names[0].name for node in imports if node.module is not None}
    assert len(names) > 30
    done = subprocess.run([sys.executable, "-c", ALONE, json.dumps(sorted(names))], capture_output=True, text=True)
    assert json.loads(done.stdout) == {}, done.stderr
