"""The forms of a product's kernel, and which one a product gets: the one place where that is decided.

    tiles      for GPUs: tiles of both operands in workgroup memory, a block of results in an invocation's registers
    broadcast  for software devices, whose drivers make a loop over lanes of every load: the lanes of a subgroup hold
               blocks of the left operand in registers, and read each other's
    line       one row, or one column, of results: every weight is read once, in fours, by neighbours

Where the device was tuned, a product has the form that was fastest for its class of shapes.  Elsewhere it has the first
guess: the first row of its device's table that the product is large enough for, and which the device's limits allow.
A product with few workgroups and a long sum is cut along its length (`parts`).
To try another blocking: a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..choices import Choice, ShapeClass, chosen
from ..profile import SUBGROUPS, DeviceLimits, Profile


@dataclass(frozen=True, slots=True)
class Sizes:
    """A product: `batch` times (rows, length) @ (length, columns).

    `along`: neighbours along the length are neighbours in memory, in the right operand.
    """

    batch: int
    rows: int
    columns: int
    length: int
    along: bool = False
    dtype: str = "f32"

    @property
    def shape_class(self) -> ShapeClass:
        sizes = self.batch, self.rows, self.columns, self.length
        if self.rows > 1:
            return ShapeClass.of("product", self.dtype, sizes)
        return ShapeClass.of("line along" if self.along else "line", self.dtype, sizes)


@dataclass(frozen=True, slots=True)
class Form:
    """Invocations of a workgroup along columns (x) and rows (y), results of one of them, and the length of a tile.

    It is for products of at least `rows_from` rows and `columns_from` columns that give at least `groups_from`
    workgroups.
    """

    family: str
    x: int
    y: int
    rows: int
    columns: int
    length: int
    rows_from: int = 1
    columns_from: int = 1
    groups_from: int = 1

    @property
    def name(self) -> str:
        return f"{self.family} {self.x}x{self.y} of {self.columns}x{self.rows} by {self.length}"

    @property
    def tile_rows(self) -> int:
        return self.y * self.rows

    @property
    def tile_columns(self) -> int:
        return self.x * self.columns

    @property
    def invocations(self) -> int:
        return self.x * self.y

    @property
    def workgroup_bytes(self) -> int:
        """The bytes of workgroup memory; an element takes four there, also one of f16."""
        if self.family == "line":
            return 16 * self.invocations if self.y > 1 else 0
        return 4 * self.length * (self.tile_rows + self.tile_columns) if self.family == "tiles" else 0

    def groups(self, sizes: Sizes) -> int:
        """The workgroups of a product."""
        return sizes.batch * -(-sizes.rows // self.tile_rows) * -(-sizes.columns // self.tile_columns)

    def fits(self, limits: DeviceLimits) -> bool:
        return self.invocations <= limits.invocations and self.workgroup_bytes <= limits.workgroup_bytes

    def suits(self, sizes: Sizes, profile: Profile) -> bool:
        return (
            sizes.rows >= self.rows_from
            and sizes.columns >= self.columns_from
            and self.groups(sizes) >= self.groups_from
            and self.fits(profile.limits)
        )


TILES = (  # 8 x 8 results make 16 fma of each 128-bit load from workgroup memory; smaller ones are for small products
    Form("tiles", 16, 16, 8, 8, 16, rows_from=96, columns_from=96, groups_from=48),
    Form("tiles", 8, 8, 8, 8, 16, rows_from=33, columns_from=33),
    Form("tiles", 16, 4, 8, 8, 8, rows_from=17, columns_from=65),
    Form("tiles", 4, 16, 8, 8, 8, rows_from=65, columns_from=17),
    Form("tiles", 32, 2, 8, 8, 8, columns_from=65),
    Form("tiles", 2, 32, 8, 8, 8, rows_from=65),
    Form("tiles", 8, 8, 4, 4, 16),
)
LINE = Form("line", 16, 16, 1, 4, 4)
LINES_ALONG = (Form("line", 16, 1, 1, 4, 4),)  # software, whose barriers are dear: the matrix lies along the length


def lines_across(lanes: int) -> tuple[Form, ...]:
    """The forms for a software device with vectors of `lanes` lanes, where the matrix lies across the length: then each
    row should be read in pieces of a page."""
    return (
        Form("line", lanes, 1, 1, 64, 4, columns_from=64 * lanes),
        Form("line", lanes, 1, 1, 16, 4, columns_from=12 * lanes),
        Form("line", lanes, 1, 1, 4, 4),
    )


def broadcast(lanes: int) -> tuple[Form, ...]:
    """The forms for subgroups of `lanes` lanes.  A larger tile needs fewer loads, and longer compiling."""
    few = 128 // lanes  # columns, where there are few rows: rows of the matrix are then read in pieces of 512 bytes
    wide = Form("broadcast", lanes, 1, 64, 4, 4, rows_from=49, columns_from=4 * lanes - 15, groups_from=8)
    return (
        *((wide,) if lanes > 8 else ()),  # loads are loops over lanes: these have fewest for their results
        Form("broadcast", lanes, 1, 32, 8, 4, rows_from=17, columns_from=8 * lanes - 15, groups_from=8),
        Form("broadcast", lanes, 1, 32, 4, 4, rows_from=17, groups_from=8),
        Form("broadcast", lanes, 1, 16, few, 4, rows_from=9, columns_from=97, groups_from=8),
        Form("broadcast", lanes, 1, 16, 4, 4, rows_from=9),
        Form("broadcast", lanes, 1, 8, few, 4, columns_from=97, groups_from=8),
        Form("broadcast", lanes, 1, 8, 4, 4),
    )


TRIED_TILES = (  # beside the first guesses: more or fewer invocations for as many results, and longer tiles
    Form("tiles", 16, 16, 4, 4, 16),
    Form("tiles", 8, 8, 8, 4, 16),
    Form("tiles", 16, 8, 8, 8, 16),
)
TRIED_LINES = (
    Form("line", 64, 1, 1, 4, 4),
    Form("line", 64, 4, 1, 4, 4),
    Form("line", 32, 8, 1, 4, 4),
    Form("line", 8, 32, 1, 4, 4),
    Form("line", 8, 8, 1, 4, 4),
)
TRIED_LINES_SOFTWARE = (
    Form("line", 8, 1, 1, 8, 4),
    Form("line", 16, 1, 1, 16, 4),
    Form("line", 32, 1, 1, 4, 4),
    Form("line", 8, 1, 1, 32, 4),
)


def tried_broadcasts(lanes: int) -> tuple[Form, ...]:
    return (
        Form("broadcast", lanes, 1, 16, 8, 4),
        Form("broadcast", lanes, 1, 32, 16, 4),
        Form("broadcast", lanes, 1, lanes, 8, 4),
    )


def form_of(sizes: Sizes, profile: Profile) -> Form:
    """The form of a product's kernel; of one with a single row or column, that is its row."""
    return choose(sizes, profile)[0]


def choose(sizes: Sizes, profile: Profile) -> tuple[Form, Choice | None]:
    """The form of a product's kernel, and what there was to choose from."""
    guesses = _guesses(sizes, profile)
    guess = next((form for form in guesses if form.suits(sizes, profile)), guesses[-1])
    return chosen(profile.choices, sizes.shape_class, guess, forms(sizes, profile))


def forms(sizes: Sizes, profile: Profile) -> tuple[Form, ...]:
    """The forms that the device's limits allow, whatever a product's sizes."""
    table: tuple[Form, ...]
    if sizes.rows == 1:
        table = (
            (*LINES_ALONG, *lines_across(_lanes(profile)), *TRIED_LINES_SOFTWARE)
            if profile.software
            else (LINE, *TRIED_LINES)
        )
    else:
        lanes = profile.subgroup
        table = (*broadcast(lanes), *tried_broadcasts(lanes)) if lanes else (*TILES, *TRIED_TILES)
    return tuple(form for form in table if form.fits(profile.limits))


def _guesses(sizes: Sizes, profile: Profile) -> tuple[Form, ...]:
    if sizes.rows > 1:
        return broadcast(profile.subgroup) if profile.subgroup else TILES
    if not profile.software:
        return (LINE,)
    return LINES_ALONG if sizes.along else lines_across(_lanes(profile))


def _lanes(profile: Profile) -> int:
    """The lanes of a software device's vectors, or a guess."""
    return profile.subgroup or SUBGROUPS[0]


LENGTH_MAX = 1 << 17  # of one sum: loops are bounded, and the rounding is better
PART_MIN = 512  # of the length: a shorter part is over before its results are stored
TILE = 64  # rows and columns of a usual tile
TILES_WANTED, TILES_WANTED_SOFTWARE = 96, 16  # to keep every core of a device busy


def parts(sizes: Sizes, profile: Profile) -> int:
    """How many parts the length is cut into, so that there are sums for all cores, and none is too long."""
    wanted = TILES_WANTED_SOFTWARE if profile.software else TILES_WANTED
    tiles = sizes.batch * -(-sizes.rows // TILE) * -(-sizes.columns // TILE)
    tiles = form_of(sizes, profile).groups(sizes) if sizes.rows == 1 else tiles
    useful = min(wanted // tiles, sizes.length // PART_MIN)
    return max(1, useful, -(-sizes.length // LENGTH_MAX))


PANELS_WORK_FROM = 3 << 26  # multiply-adds: 512 x 512 x 512 lies in caches
PANELS_FROM, PANELS_LENGTH_FROM = 128, 256  # rows and columns, so often is each element used; and the length


def in_panels(sizes: Sizes, profile: Profile) -> bool:
    """Whether a dot's operands are first copied so that what a tile reads lies in one piece of memory.

    Rows of the right operand often lie a power of two apart, and then drop each other from a cpu's caches.  Not so if
    it lies along the length; and GPUs have workgroup memory.
    """
    work = sizes.batch * sizes.rows * sizes.columns * sizes.length
    large = min(sizes.rows, sizes.columns) >= PANELS_FROM and sizes.length >= PANELS_LENGTH_FROM
    far = not sizes.along and sizes.length % 4 == 0
    return bool(profile.subgroup) and large and far and work >= PANELS_WORK_FROM


COPIES_WORK_FROM = 1 << 24  # multiply-adds
COPIES_USES_FROM = 32  # of an element of x
FEW_CHANNELS = 7  # those of one position fill no tile


def conv_copies(sizes: Sizes, positions: int, profile: Profile) -> tuple[bool, bool]:
    """Whether a conv's w, and its x, are first copied with channels last, for a kernel of `positions` positions.

    Then windows lie in pieces, and padding in memory, not in conditions.  GPUs read x as it is unless its channels are
    few.
    """
    work = sizes.batch * sizes.rows * sizes.columns * sizes.length
    pays = positions > 1 and work >= COPIES_WORK_FROM and sizes.rows * positions >= COPIES_USES_FROM
    return pays, pays and (profile.software or sizes.length // positions <= FEW_CHANNELS)
