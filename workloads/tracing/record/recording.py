"""What one rank did, op by op, before it is cut into templates.  Plain data: crosses process borders."""

from __future__ import annotations

from dataclasses import field

from simcore.records import dataclass

#: Columns that are known when an op is recorded, in the order of :attr:`RawOp.columns`.
COLUMNS = (
    "name",
    "op_class",
    "kind",
    "stream",
    "phase",
    "module",
    "layer",
    "dtype",
    "in_shapes",
    "out_shapes",
    "flops",
    "bytes_read",
    "bytes_written",
    "group",
    "collective",
    "num_bytes",
    "reduce_op",
    "peer_delta",
    "blocking",
)
KIND, STREAM, PHASE, MODULE = (COLUMNS.index(name) for name in ("kind", "stream", "phase", "module"))
DTYPE, FLOPS = COLUMNS.index("dtype"), COLUMNS.index("flops")
NAME, OP_CLASS, IN_SHAPES, GROUP = map(COLUMNS.index, ("name", "op_class", "in_shapes", "group"))
OUT_SHAPES = COLUMNS.index("out_shapes")
BYTES_READ, BYTES_WRITTEN = COLUMNS.index("bytes_read"), COLUMNS.index("bytes_written")

Value = str | int


@dataclass(slots=True)
class RawOp:
    """One op.  ``deps`` maps earlier ops to the kind of edge, ``launch`` numbers fused launches (-1 none).

    ``forward`` is the forward op that a backward op belongs to, -1 when unknown.  ``alloc_bytes``: storage
    that first exists with this op.  All references are indices into :attr:`Recording.ops`.
    """

    columns: tuple[Value, ...]
    data: tuple[int, ...]
    waits: tuple[int, ...]
    launch: int = -1
    forward: int = -1
    alloc_bytes: int = 0

    @property
    def stream(self) -> str:
        """Stream symbol."""
        return str(self.columns[STREAM])


@dataclass(frozen=True, slots=True)
class RecordedSegment:
    """A stretch of ops that becomes one template instance; ``first`` is its first op."""

    kind: str
    microbatch: int
    chunk: int
    first: int


@dataclass(frozen=True, slots=True)
class Free:
    """A storage of ``num_bytes`` died after op ``after``; ``owner`` is the op that allocated it (-1: before
    the step).
    """

    after: int
    num_bytes: int
    owner: int


@dataclass
class Recording:
    """One rank's step in issue order.  ``groups`` maps symbols to the members of this rank's group, ``sites``
    ops that allocate much or communicate to the lines of code that called them, innermost first;
    ``freed_before``: bytes that died before the first op.
    """

    ops: list[RawOp] = field(default_factory=list)
    segments: list[RecordedSegment] = field(default_factory=list)
    frees: list[Free] = field(default_factory=list)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    sites: dict[int, tuple[str, ...]] = field(default_factory=dict)
    freed_before: int = 0


@dataclass(frozen=True)
class ValueAsked:
    """One site: what was asked ("item": a value, "share": the true part of a mask, "peers": what other ranks
    give), the answer, and the rule by which it was given ("": none, the user said it).
    """

    site: str
    kind: str
    answer: float
    overridden: bool
    rule: str = ""
