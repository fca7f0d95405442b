"""Where cells begin and end on a tape, and which of them are the same."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from simcore.engine.items import Item, packed
from simcore.engine.shortcuts.cells import Cell, Cells, Chain, Pattern, Patterns, calls_of

if TYPE_CHECKING:
    from simcore.engine.tape import Tape
    from simcore.graph.kinds import BoolArray
    from simcore.graph.ops import IntArray


def find_cells(tape: Tape, streams: tuple[int, ...], is_local: BoolArray, known: Patterns) -> Cells:
    """Chains where ``streams`` (the main one first) are local; ``known`` patterns are used again.

    ``is_local`` marks items (over all streams) whose calls, if any, are.
    """
    finder = _Finder(tape, streams, is_local)
    places = finder.cuts()
    if len(places) < 2:
        nothing = array("i", [-1]) * len(tape.streams[streams[0]])
        return Cells(streams, array("i"), array("i"), [], nothing, nothing)
    closed = finder.are_closed(places)
    goes_on = finder.go_on(places[1:-1])
    first = closed & ~np.concatenate([[False], closed[:-1] & goes_on])
    number = np.where(closed, np.cumsum(first) - 1, -1)
    begins = np.flatnonzero(first)
    ends = np.searchsorted(number[closed], np.arange(len(begins)), side="right")
    cells_before = np.flatnonzero(closed)
    chain_of = np.full(len(tape.streams[streams[0]]), -1, dtype=np.int64)
    cell_of = np.full(len(chain_of), -1, dtype=np.int64)
    starts = places[:-1, 0][closed]
    chain_of[starts] = number[closed]
    cell_of[starts] = cells_before - begins[number[closed]]
    stops = cells_before[ends - 1] + 1 if len(begins) else begins
    finder.number(places)
    chains = [finder.chain(lo, hi, known) for lo, hi in zip(begins.tolist(), stops.tolist(), strict=True)]
    return Cells(streams, finder.places, finder.needed, chains, packed(chain_of), packed(cell_of))


class _Finder:
    """Columns by stream and item, local streams only; sums over items before each."""

    def __init__(self, tape: Tape, streams: tuple[int, ...], is_local: BoolArray) -> None:
        self._tape, self._streams = tape, streams
        table = tape.table
        bounds = [(tape.first_item[s], tape.first_item[s + 1]) for s in streams]
        self._first_item = [lo for lo, _ in bounds]
        stream_of = np.repeat(np.arange(len(tape.streams)), np.diff(tape.first_item))
        local_streams = np.isin(np.arange(len(tape.streams)), streams)
        from_local = local_streams[stream_of[table.wait_from]]
        to_local = local_streams[stream_of[table.wait_to]]
        abroad = np.zeros(len(stream_of), dtype=np.bool_)
        abroad[table.wait_to[~from_local]] = True
        watched = np.zeros(len(stream_of), dtype=np.bool_)
        watched[table.wait_from[~to_local]] = True
        watched[table.host_waits] = True
        instance = tape.flat.instance[tape.order[tape.first_op]].astype(np.int64)
        odd = table.is_copy | ~is_local
        self._abroad = [abroad[lo:hi] for lo, hi in bounds]
        self._watched = [watched[lo:hi] for lo, hi in bounds]
        self._odd = [odd[lo:hi] for lo, hi in bounds]
        self._instance = [instance[lo:hi] for lo, hi in bounds]
        self._segment = [table.segment[lo:hi] for lo, hi in bounds]
        self._launched = [table.launched_ps[lo:hi] for lo, hi in bounds]
        self._template = tape.flat.program.template.tolist()
        self._instance_of = self._instance[0].tolist()
        self._segment_of = self._segment[0].tolist()
        self._content = _contents(tape).astype(np.int64).tobytes()
        sizes = np.diff(np.append(tape.first_op, len(tape.order))).astype(np.int32)
        self._sizes = [sizes[lo:hi].tobytes() for lo, hi in bounds]
        local = np.full(len(tape.streams), -1, dtype=np.int64)
        local[list(streams)] = np.arange(len(streams))
        wait_stream = local[stream_of[table.wait_from]]
        wait_from = table.wait_from - np.array(tape.first_item)[stream_of[table.wait_from]]
        self._wait_items: list[IntArray] = []
        self._waits: list[list[list[int]]] = []  # of each stream: item, stream and item that it waits for
        self._wait_table: list[IntArray] = []
        for lo, hi in bounds:
            mine = np.flatnonzero(from_local & (lo <= table.wait_to) & (table.wait_to < hi))
            mine = mine[np.lexsort((wait_from[mine], wait_stream[mine], table.wait_to[mine]))]
            waits = np.stack([table.wait_to[mine] - lo, wait_stream[mine], wait_from[mine]], axis=1)
            self._waits.append(waits.tolist())
            self._wait_table.append(waits)
            self._wait_items.append(waits[:, 0])
        main = streams[0]
        into_main = stream_of[table.wait_to] == main
        self._done: list[IntArray] = []  # of each other stream, before each item of the main one
        self._needs: list[IntArray] = []  # item of the main stream that each item of others waits for
        for s, (lo, hi) in zip(streams[1:], bounds[1:], strict=True):
            mine = into_main & (stream_of[table.wait_from] == s)
            done = np.zeros(bounds[0][1] - bounds[0][0], dtype=np.int64)
            np.maximum.at(done, table.wait_to[mine] - bounds[0][0], table.wait_from[mine] - lo + 1)
            self._done.append(np.maximum.accumulate(done))
            mine = (stream_of[table.wait_to] == s) & (stream_of[table.wait_from] == main)
            needs = np.full(hi - lo + 1, -1, dtype=np.int64)
            np.maximum.at(needs, table.wait_to[mine] - lo, table.wait_from[mine] - bounds[0][0])
            needs[-1] = len(done)
            self._needs.append(needs)

    def cuts(self) -> IntArray:
        """Where the main stream goes on and nothing else can be under way: a row per place."""
        items = np.arange(len(self._abroad[0]))
        quiet = np.ones(len(items), dtype=np.bool_)
        for done, needs in zip(self._done, self._needs, strict=True):
            quiet &= needs[done] >= items
        return np.stack([items[quiet], *(done[quiet] for done in self._done)], axis=1)

    def are_closed(self, places: IntArray) -> BoolArray:
        """Whether the cells between ``places`` concern nobody else, but for who waits for their ends, and are
        of one piece.
        """
        closed = np.ones(max(0, len(places) - 1), dtype=np.bool_)
        first = places[:-1, 0]
        segment, instance = self._segment[0][first], self._instance[0][first]
        for s in range(len(self._streams)):
            lo, hi = places[:-1, s], places[1:, s]
            some = hi > lo
            last = np.where(some, hi - 1, 0)
            for column, value in ((self._segment[s], segment), (self._instance[s], instance)):
                closed &= ~some | ((column[np.where(some, lo, 0)] == value) & (column[last] == value))
            closed &= _count(self._odd[s], lo, hi) == 0
            # The first item may have waited for others, the last one may be waited for.
            closed &= _count(self._abroad[s], np.minimum(lo + (s == 0), hi), hi) == 0
            closed &= _count(self._watched[s], lo, np.maximum(hi - 1, lo)) == 0
        return closed

    def go_on(self, places: IntArray) -> BoolArray:
        """Whether a chain may go on across each of ``places``."""
        here = places[:, 0]
        before = np.maximum(here - 1, 0)
        goes_on = ~self._abroad[0][here]
        for column in (self._segment[0], self._instance[0]):
            goes_on &= column[here] == column[before]
        for s, watched in enumerate(self._watched):
            at = places[:, s]
            goes_on &= (at == 0) | ~watched[np.maximum(at - 1, 0)]
        return goes_on

    def number(self, places: IntArray) -> None:
        """Note what chains between ``places`` are made of, for all of them at once."""
        tape = self._tape
        ops = np.concatenate([tape.first_op, [len(tape.order)]])
        launched = np.zeros(len(places) - 1, dtype=np.int64)
        for s, column in enumerate(self._launched):
            if len(column):  # launches follow each other: the last is the last on one of the streams
                some = places[1:, s] > places[:-1, s]
                launched = np.maximum(launched, np.where(some, column[np.maximum(places[1:, s] - 1, 0)], 0))
        at = places + np.array(self._first_item)
        watched = [
            column[np.maximum(places[:, s] - 1, 0)] for s, column in enumerate(self._watched) if len(column)
        ]
        begins = tape.order[tape.first_op[at[:-1, 0]]] - tape.flat.first[self._instance[0][places[:-1, 0]]]
        first_wait = [np.searchsorted(waits, places[:, s]) for s, waits in enumerate(self._wait_items)]
        self._first_wait = packed(np.stack(first_wait, axis=1).ravel())
        # One after the other, a number for each stream.
        self.places, self._ops = packed(places.ravel()), packed(ops[at].ravel())
        needed = [needs[places[:, 1 + s]] for s, needs in enumerate(self._needs)]
        self.needed = packed(np.stack(needed, axis=1).ravel()) if needed else array("i")
        self._launched_by, self._begins = array("q", launched.tobytes()), packed(begins)
        self._ends_watched = np.stack(watched, axis=1).tobytes()

    def chain(self, lo: int, hi: int, known: Patterns) -> Chain:
        """The chain of the cells between places ``lo`` and ``hi``."""
        width = len(self._streams)
        at = self.places[lo * width : (hi + 1) * width]
        first, before, last = at[:width], at[-2 * width : -width], at[-width:]
        first_op, last_op = self._row(self._ops, lo), self._row(self._ops, hi)
        marks = self._ends_watched[hi * width : (hi + 1) * width]
        watched = tuple([
            s
            for s, (begin, end, mark) in enumerate(zip(before, last, marks, strict=True))
            if end > begin and mark
        ])  # fmt: skip
        template = int(self._template[self._instance_of[first[0]]])
        key = (
            self._tape.kernels, template, self._begins[lo], self._streams, watched,
            *[end - begin for begin, end in zip(first, last, strict=True)],
            *[end - begin for begin, end in zip(first_op, last_op, strict=True)],
        )  # fmt: skip
        pattern = known.placed.get(key)
        if pattern is None:
            content = (watched, *self._content_of(lo, hi))
            pattern = known.patterns.get(content)
            if pattern is None:
                cells = tuple([self._cell(number, known) for number in range(lo, hi)])
                pattern = known.patterns[content] = Pattern.of(cells, watched)
            known.placed[key] = pattern
        launched = self._launched_by[lo:hi]
        return Chain(lo, self._segment_of[first[0]], launched, max(launched), pattern)

    def _row(self, numbers: array[int], place: int) -> array[int]:
        """Those of a place, by stream."""
        width = len(self._streams)
        return numbers[place * width : (place + 1) * width]

    def _content_of(self, lo: int, hi: int) -> tuple[object, ...]:
        """What happens between two places, wherever they stand: in equal stretches, cells are equal."""
        width = len(self._streams)
        at = np.array(self.places[lo * width : (hi + 1) * width]).reshape(-1, width)
        begin, end = at[0].tolist(), at[-1].tolist()
        ops = self._row(self._ops, lo), self._row(self._ops, hi)
        waits = self._row(self._first_wait, lo), self._row(self._first_wait, hi)
        content: list[object] = [self._streams, (at - at[0]).tobytes()]
        for s, (first, last, op_lo, op_hi, wait_lo, wait_hi) in enumerate(
            zip(begin, end, *ops, *waits, strict=True)
        ):
            of = self._wait_table[s][wait_lo:wait_hi]
            since = of[:, 2] - at[0][of[:, 1]]
            content += (
                self._content[8 * op_lo : 8 * op_hi],
                self._sizes[s][4 * first : 4 * last],
                (of[:, 0] - first).tobytes(), of[:, 1].tobytes(), np.maximum(since, -1).tobytes(),
            )  # fmt: skip
        return tuple(content)

    def _cell(self, number: int, known: Patterns) -> Cell:
        """The cell that begins at a place, known by what happens in it, wherever it stands.

        All has been launched long ago, so that times of launches do not count.
        """
        begin, end = self._row(self.places, number), self._row(self.places, number + 1)
        ops = self._row(self._ops, number), self._row(self._ops, number + 1)
        waits = self._row(self._first_wait, number), self._row(self._first_wait, number + 1)
        content: list[object] = [self._streams]
        bounds = zip(begin, end, *ops, *waits, strict=True)
        for s, (lo, hi, op_lo, op_hi, wait_lo, wait_hi) in enumerate(bounds):
            content += (
                self._content[8 * op_lo : 8 * op_hi],
                self._sizes[s][4 * lo : 4 * hi],
                tuple([
                    (to - lo, of, since - begin[of])
                    for to, of, since in self._waits[s][wait_lo:wait_hi]
                    if since >= begin[of]
                ]),
            )  # fmt: skip
        key = tuple(content)
        cell = known.cells.get(key)
        if cell is None:
            shape = zip(begin, end, *ops, strict=True)
            sizes = tuple((hi - lo, op_hi - op_lo) for lo, hi, op_lo, op_hi in shape)
            cell = known.cells[key] = self._made(begin, end, sizes)
        return cell

    def _made(self, begin: array[int], end: array[int], shape: tuple[tuple[int, int], ...]) -> Cell:
        local = {stream: number for number, stream in enumerate(self._streams)}
        out = []
        for stream, lo, hi in zip(self._streams, begin, end, strict=True):
            inside = []
            for item in self._tape.streams[stream][lo:hi]:
                waits = [
                    (local[stream], done - begin[local[stream]])
                    for stream, done in item.waits
                    if stream in local and done >= begin[local[stream]]
                ]
                inside.append(Item(0, 0, tuple(waits), True, item.work, item.on_copy_engine))
            out.append(tuple(inside))
        calls = tuple(calls_of(out))
        return Cell(tuple(out), calls, tuple(dict.fromkeys(calls)), shape)


def _contents(tape: Tape) -> IntArray:
    """What a tape plays, by position: the same number for equal kernels, and for equal calls."""
    rows = tape.flat.row[tape.order]
    call = np.zeros(int(rows.max(initial=-1)) + 1, dtype=np.int64)
    for row, one in tape.calls.items():
        if row < len(call):
            call[row] = one.number
    table, item = tape.table, tape.item_of
    calls = -1 - 2 * call[rows] - table.on_copy_engine[item]
    return np.where(table.communicates[item], calls, tape.kernels.number[tape.kernel])


def _count(marks: BoolArray, lo: IntArray, hi: IntArray) -> IntArray:
    """Marks from ``lo`` to ``hi`` (exclusive)."""
    before = np.concatenate([[0], np.cumsum(marks)])
    counts: IntArray = before[hi] - before[lo]
    return counts
