"""The forms of a kernel that reduces rows, and which one a reduction gets: an invocation for a row, or a workgroup.

Where the device was tuned, a reduction has the form that was fastest for its class of shapes, elsewhere the first
guess.  To try another one: a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..choices import Choice, ShapeClass, chosen
from ..profile import Profile

SHORT_ROW = 32  # columns below which a workgroup per row is a waste
MANY_ROWS = 1_024  # rows that fill a device one invocation each
SOFTWARE_ROWS = 32  # rows that fill a software device
GROUP_MAX = 128


@dataclass(frozen=True, slots=True)
class Rows:
    """Reductions of `rows` of `columns`, walked in `steps`, `sweeps` times.  `across`: columns are no neighbours in
    memory; `full`: the result has columns, too.  The kernel has `totals` accumulators in an invocation."""

    dtype: str
    rows: int
    columns: int
    steps: int
    sweeps: int
    totals: int
    across: bool
    full: bool

    @property
    def shape_class(self) -> ShapeClass:
        kind = f"{'softmax' if self.full else 'sum'}{' across' if self.across else ''}"
        return ShapeClass.of(kind, self.dtype, (self.rows, self.columns))


@dataclass(frozen=True, slots=True)
class RowForm:
    """`invocations` of a workgroup; each has a row, or all of them have one."""

    each: bool
    invocations: int

    @property
    def name(self) -> str:
        return f"{self.invocations} rows" if self.each else f"a row by {self.invocations}"

    def fits(self, rows: Rows, profile: Profile) -> bool:
        if self.invocations > profile.limits.invocations:
            return False
        if self.each:
            return rows.steps * rows.sweeps <= profile.loop_trips
        return 4 * rows.totals * self.invocations <= profile.limits.workgroup_bytes


TRIED = (
    *(RowForm(True, count) for count in (32, 64, 128, 256)),
    *(RowForm(False, count) for count in (16, 32, 64, 128, 256)),
)


def choose(rows: Rows, profile: Profile) -> tuple[RowForm, Choice | None]:
    """The form of a kernel, and what there was to choose from."""
    return chosen(profile.choices, rows.shape_class, _guess(rows, profile), forms(rows, profile))


def forms(rows: Rows, profile: Profile) -> tuple[RowForm, ...]:
    """The forms that the device's limits allow for these rows."""
    return tuple(form for form in TRIED if form.fits(rows, profile))


def _guess(rows: Rows, profile: Profile) -> RowForm:
    if _by_invocation(rows, profile):
        return RowForm(True, profile.usual_invocations)
    most = min(profile.limits.invocations, GROUP_MAX)
    wanted = max(16, rows.steps // 4)
    return RowForm(False, min(1 << (most.bit_length() - 1), 1 << (wanted - 1).bit_length()))


def _by_invocation(rows: Rows, profile: Profile) -> bool:
    if rows.steps * rows.sweeps > profile.loop_trips:
        return False
    if profile.software:
        return rows.rows >= SOFTWARE_ROWS or rows.columns <= SHORT_ROW
    return rows.columns <= SHORT_ROW or (rows.across and rows.rows >= MANY_ROWS)  # neighbours read neighbours
