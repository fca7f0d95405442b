"""One rank of a pipeline written anew: rows of a recorded rank in another order, exchanges between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

import numpy as np

from simcore.graph import OpKind
from simcore.graph.kinds import is_on_host
from simcore.graph.ops import IntArray
from simcore.records import dataclass
from workloads.edits.job import EditableJob
from workloads.edits.recorded.stages.actions import RecordedAction

Patch = dict[str, str | int]


@dataclass(frozen=True)
class StageExchange:
    """A send to, or a receive from, another stage."""

    kind: OpKind
    stream: str
    group: str
    peer_delta: int
    transfer_ps: int


@dataclass
class ProgramWriter:
    """Rows of the new rank (``rows``: of the old graph), what of them changes, and the edges between them.

    An edge comes from the latest copy of its source.  What waited for an exchange waits for those at its
    place now; what waited, before an action, for what came before waits for what comes before now.
    """

    job: EditableJob
    into: dict[int, list[int]]
    old_exchanges: frozenset[int]
    main_stream: int
    rows: list[int] = field(default_factory=list)
    patches: dict[int, Patch] = field(default_factory=dict)
    edges: set[tuple[int, int]] = field(default_factory=set)
    plain_rows: list[int] = field(default_factory=list)
    _latest: dict[int, int] = field(default_factory=dict)
    _on_stream: dict[int, int] = field(default_factory=dict)
    _exchanged: list[int] = field(default_factory=list)

    def plain(self, rows: Iterable[int], dropped: frozenset[int]) -> None:
        """What stands outside the actions, as recorded."""
        for row in rows:
            if row not in dropped:
                self.plain_rows.append(len(self.rows))
                self._row(row, anew=False)

    def lead(self, rows: Sequence[int], shortest: dict[int, int], asynchronous: bool) -> None:
        """What comes before an action: host time and gaps no longer than ``shortest`` (ps, by kind of op).

        ``asynchronous``: the host does not wait for exchanges.
        """
        ops = self.job.graph.ops
        kinds = ops.kind[np.array(rows, dtype=np.int64)] if len(rows) else np.zeros(0, dtype=np.int64)
        spent = {
            kind: int(ops.recorded_ps[np.array(rows)[kinds == kind]].sum()) for kind in shortest if len(rows)
        }
        for row, kind in zip(rows, kinds.tolist(), strict=True):
            sources = self.into.get(row, [])
            if asynchronous and kind == OpKind.SYNC and sources and self.old_exchanges.issuperset(sources):
                continue
            at = self._row(row, anew=True)
            if spent.get(kind, 0) > shortest.get(kind, 0) >= 0 and kind in shortest:
                length = int(ops.recorded_ps[row]) * shortest[kind] // spent[kind]
                self.patches.setdefault(at, {})["recorded_ps"] = length

    def body(self, rows: Iterable[int], waits: Sequence[int] = ()) -> int:
        """An action's ops; its first kernel on the main stream waits for ``waits``.  Returns its place."""
        begin = len(self.rows)
        waiting = list(waits)
        for row in rows:
            at = self._row(row, anew=False)
            if waiting and int(self.job.graph.ops.stream.codes[row]) == self.main_stream:
                self.edges.update((source, at) for source in waiting)
                waiting = []
        return begin

    def exchange(self, like: int, planned: StageExchange, launch: int, *, waits: bool) -> int:
        """An exchange written over row ``like``; it waits for the main stream's latest op if it ``waits``.

        Exchanges of one number ``launch`` are one launch; -1: of its own.
        """
        at = len(self.rows)
        self.rows.append(like)
        self.patches[at] = {
            "kind": int(planned.kind), "stream": planned.stream, "group": planned.group, "collective": "",
            "peer_delta": planned.peer_delta, "batch": launch,
            "recorded_ps": planned.transfer_ps, "num_bytes": 0, "reduce_op": "",
        }  # fmt: skip
        source = self._on_stream.get(self.main_stream)
        if waits and source is not None:
            self.edges.add((source, at))
        return at

    def at_hand(self, exchanges: list[int]) -> None:
        """What waits for exchanges from now on waits for these."""
        self._exchanged = exchanges

    def _row(self, row: int, *, anew: bool) -> int:
        at = len(self.rows)
        streams = self.job.graph.ops.stream.codes
        for source in self.into.get(row, ()):
            if source in self.old_exchanges:
                self.edges.update((place, at) for place in self._exchanged)
                continue
            place = self._latest.get(source)
            if anew or place is None:
                place = self._on_stream.get(int(streams[source]))
            if place is not None:
                self.edges.add((place, at))
        self.rows.append(row)
        self._latest[row] = at
        self._on_stream[int(streams[row])] = at
        return at


def lead_parts(
    job: EditableJob, piece: RecordedAction, beside: Sequence[RecordedAction], exchanges: bool
) -> tuple[IntArray, IntArray, str]:
    """The lead of an action before its exchanges and after them, and the kind of action the latter is of.

    Where it had none and now ``exchanges``, the host does afterwards what it does in another action's lead
    (``beside``: those of the rank); where it has none any more, it does not wait for them.
    """
    kinds = job.graph.ops.kind
    if piece.before < 0:
        like = next((one for one in beside if one.before >= 0), None)
        if not exchanges or like is None:
            return piece.lead, piece.lead[:0], piece.kind
        after = like.lead[like.before :]
        return piece.lead, after[is_on_host(kinds[after])], like.kind
    before, after = piece.lead[: piece.before], piece.lead[piece.before :]
    return before, after if exchanges else after[kinds[after] != OpKind.SYNC], piece.kind
