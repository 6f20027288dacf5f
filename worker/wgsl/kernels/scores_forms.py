"""The forms of a kernel that sums scores, and which one a sum gets.

On a GPU, and on a software device without subgroups, blocks of columns lie in workgroup memory; on a software device
with subgroups each lane holds a column.  Where the device was tuned, an attention has the form that was fastest for its
class of shapes, elsewhere the first guess.  To try another one: a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..choices import Choice, ShapeClass, chosen
from ..profile import Profile

GROUP = 64  # invocations of a workgroup on a GPU
SOFTWARE_GROUP = 32  # on a software device without subgroups
SOFTWARE_ROWS = 2  # of an invocation there: what is loaded serves both
SUBGROUP_ROWS = 4  # of an invocation on a software device with subgroups, where the next two allow it
GROUPS_FROM = 16  # workgroups that are left, so that all cores have work
HELD_MAX = 48  # quads of a row that an invocation holds: drivers take long to compile a kernel that holds more
BLOCKS = (32, 16, 8)  # columns of a block, as many as workgroup memory has room for


@dataclass(frozen=True, slots=True)
class Scores:
    """A sum of scores: `batch` times (rows, columns), made of `held` quads a row, and `quads` that are read of each
    column; `width` is that of what makes the scores.  `kind` is a row of `problems.PROBLEMS`, "" for what is never
    measured."""

    kind: str
    dtype: str
    batch: int
    rows: int
    columns: int
    width: int
    held: int
    quads: int

    @property
    def shape_class(self) -> ShapeClass | None:
        sizes = self.batch, self.rows, self.columns, self.width
        return ShapeClass.of(self.kind, self.dtype, sizes) if self.kind else None


@dataclass(frozen=True, slots=True)
class ScoresForm:
    """Invocations of a workgroup, rows of one of them, and columns of a block."""

    lanes: int
    rows: int
    columns: int

    @property
    def name(self) -> str:
        return f"{self.lanes} lanes of {self.rows} rows by {self.columns}"

    def fits(self, scores: Scores, profile: Profile) -> bool:
        limits = profile.limits
        if profile.subgroup:
            return self.rows * scores.held <= LANE_MAX
        return self.lanes <= limits.invocations and 16 * scores.quads * self.columns <= limits.workgroup_bytes


TRIED = (
    *(ScoresForm(GROUP, 1, columns) for columns in BLOCKS),
    ScoresForm(32, 1, 32),
    ScoresForm(32, 2, 32),
    ScoresForm(32, 2, 16),
    ScoresForm(64, 2, 16),
    ScoresForm(128, 1, 32),
    ScoresForm(128, 1, 16),
    ScoresForm(256, 1, 16),
)
TRIED_ROWS = (1, 2, 3, 4, 5, 6)  # of a lane, on a software device with subgroups
LANE_MAX = 4 * HELD_MAX  # quads of all rows of a lane


def choose(scores: Scores, profile: Profile) -> tuple[ScoresForm, Choice | None]:
    """The form of a kernel, and what there was to choose from."""
    return chosen(profile.choices, scores.shape_class, _guess(scores, profile), forms(scores, profile))


def forms(scores: Scores, profile: Profile) -> tuple[ScoresForm, ...]:
    """The forms that the device's limits allow for these scores."""
    lanes = profile.subgroup
    tried = [ScoresForm(lanes, rows, lanes) for rows in TRIED_ROWS] if lanes else TRIED
    return tuple(form for form in tried if form.fits(scores, profile))


def _guess(scores: Scores, profile: Profile) -> ScoresForm:
    lanes = profile.subgroup or min(SOFTWARE_GROUP if profile.software else GROUP, profile.limits.invocations)
    rows = _rows_each(scores, lanes, bool(profile.subgroup)) if profile.software else 1
    room = profile.limits.workgroup_bytes
    block = next((columns for columns in BLOCKS if 16 * scores.quads * columns <= room), BLOCKS[-1])
    return ScoresForm(lanes, rows, profile.subgroup or block)


def _rows_each(scores: Scores, lanes: int, subgroups: bool) -> int:
    """How many rows an invocation has on a software device."""
    many = lanes * SUBGROUP_ROWS
    groups = scores.batch * -(-scores.rows // many)
    if subgroups and scores.rows >= many and groups >= GROUPS_FROM and scores.held <= HELD_MAX:
        return SUBGROUP_ROWS
    return SOFTWARE_ROWS if scores.rows > lanes else 1
