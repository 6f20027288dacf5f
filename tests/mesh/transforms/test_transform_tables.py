"""Every op of the table has a derivative and a batch, or is named here with the reason why not."""

from __future__ import annotations

import pytest

from mesh.transforms.jvp_rules import JVPS
from mesh.transforms.vjp_rules import VJPS
from mesh.transforms.vmap_rules import VMAPS
from wire.ir.ops import LEAVES, OPS

NEVER_WALKED = {
    **dict.fromkeys((*LEAVES, "iota", "axis_index"), "has no operands, so it depends on no argument"),
}
WITHOUT = {
    "vjp": NEVER_WALKED,
    "jvp": NEVER_WALKED,
    "vmap": NEVER_WALKED,
}
TABLES = {"vjp": VJPS, "jvp": JVPS, "vmap": VMAPS}


@pytest.mark.parametrize("transform", TABLES)
def test_every_op_has_a_rule_or_a_reason(transform: str) -> None:
    missing = OPS.keys() - TABLES[transform].keys() - WITHOUT[transform].keys()
    assert not missing, f"add rows to mesh/transforms/{transform}.py for {sorted(missing)}"


@pytest.mark.parametrize("transform", TABLES)
def test_no_rule_is_of_an_op_that_is_gone(transform: str) -> None:
    assert TABLES[transform].keys() <= OPS.keys()
    assert not TABLES[transform].keys() & WITHOUT[transform].keys()


def test_a_row_of_vjp_has_a_rule_for_every_operand() -> None:
    for name, row in VJPS.items():
        if isinstance(row, tuple):
            assert len(row) == OPS[name].inputs, name
