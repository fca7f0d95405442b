"""Where cells begin and end on a tape, and which of them are the same."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from simcore.engine.items import Item, packed
from simcore.engine.shortcuts.bookings import ranges
from simcore.engine.shortcuts.cells import Cell, Cells, Chain, Pattern, Patterns, calls_of

if TYPE_CHECKING:
    from simcore.engine.tape import Tape
    from simcore.graph.kinds import BoolArray
    from simcore.graph.ops import IntArray


_THING: Final = np.dtype([(name, np.int32) for name in ("what", "one", "two", "three")])


def find_cells(tape: Tape, streams: tuple[int, ...], is_local: BoolArray, known: Patterns) -> Cells:
    """Chains where ``streams`` (the main one first) are local; ``known`` patterns are used again.

    ``is_local`` marks items (over all streams) whose calls, if any, are.
    """
    finder = _Finder(tape, streams, is_local)
    places = finder.cuts()
    if len(places) < 2:
        nothing = array("i", [-1]) * len(tape.streams[streams[0]])
        return Cells(streams, array("i"), array("i"), [], nothing, nothing, finder.watched)
    closed = finder.are_closed(places)
    goes_on = finder.go_on(places)
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
    patterns = finder.patterns(begins, stops, known)
    bounds = zip(begins.tolist(), stops.tolist(), patterns, strict=True)
    chains = [finder.chain(lo, hi, pattern) for lo, hi, pattern in bounds]
    columns = packed(chain_of), packed(cell_of)
    return Cells(streams, packed(places.ravel()), finder.needed, chains, *columns, finder.watched)


class _Finder:
    """Columns by stream and item, local streams only; sums over items before each."""

    def __init__(self, tape: Tape, streams: tuple[int, ...], is_local: BoolArray) -> None:
        self._tape, self._streams = tape, streams
        table = tape.table
        bounds = [(tape.first_item[s], tape.first_item[s + 1]) for s in streams]
        self._first_item = [lo for lo, _ in bounds]
        stream_of = np.repeat(np.arange(len(tape.streams)), np.diff(tape.first_item))
        local_streams = np.zeros(len(tape.streams), dtype=np.bool_)
        local_streams[list(streams)] = True
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
        self.watched = tuple(watched[lo:hi] for lo, hi in bounds)
        self._odd = [odd[lo:hi] for lo, hi in bounds]
        self._instance = [instance[lo:hi] for lo, hi in bounds]
        self._segment = [table.segment[lo:hi] for lo, hi in bounds]
        self._launched = [table.launched_ps[lo:hi] for lo, hi in bounds]
        self._segment_of = self._segment[0].tolist()
        self._content = _contents(tape)
        sizes = np.diff(np.append(tape.first_op, len(tape.order)))
        self._sizes = [sizes[lo:hi] for lo, hi in bounds]
        local = np.full(len(tape.streams), -1, dtype=np.int64)
        local[list(streams)] = np.arange(len(streams))
        wait_stream = local[stream_of[table.wait_from]]
        wait_from = table.wait_from - np.array(tape.first_item)[stream_of[table.wait_from]]
        self._wait_items: list[IntArray] = []
        self._waits: list[IntArray] = []  # of each stream: item, stream and item that it waits for
        for lo, hi in bounds:
            mine = np.flatnonzero(from_local & (lo <= table.wait_to) & (table.wait_to < hi))
            mine = mine[np.lexsort((wait_from[mine], wait_stream[mine], table.wait_to[mine]))]
            waits = np.stack([table.wait_to[mine] - lo, wait_stream[mine], wait_from[mine]], axis=1)
            self._waits.append(waits)
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
        """Whether the cells between ``places`` concern nobody else, but for who waits for what is in them,
        and are launched in one piece.

        An item that others wait for is not waited for inside the cell, too: who goes on first could matter.
        """
        closed = np.ones(max(0, len(places) - 1), dtype=np.bool_)
        first = places[:-1, 0]
        segment, instance = self._segment[0][first], self._instance[0][first]
        for s in range(len(self._streams)):
            lo, hi = places[:-1, s], places[1:, s]
            some = hi > lo
            last = np.where(some, hi - 1, 0)
            begin = np.where(some, lo, 0)
            column = self._segment[s]
            closed &= ~some | ((column[begin] == segment) & (column[last] == segment))
            closed &= ~some | (self._instance[s][begin] >= instance)
            closed &= _count(self._odd[s], lo, hi) == 0
            # The first item may have waited for others.
            closed &= _count(self._abroad[s], np.minimum(lo + (s == 0), hi), hi) == 0
            item, of, awaited = self._waits[s].T
            cell = np.searchsorted(places[:, s], item, side="right")
            for other, watched in enumerate(self.watched):
                mine = np.flatnonzero(of == other)
                mine = mine[watched[awaited[mine]]]
                there = np.searchsorted(places[:, other], awaited[mine], side="right")
                inside = cell[mine][cell[mine] == there] - 1
                closed[inside[(inside >= 0) & (inside < len(closed))]] = False
        return closed

    def go_on(self, places: IntArray) -> BoolArray:
        """Whether a chain may go on across each of ``places`` but the first and the last.

        Not where the cell before ends with something that others wait for.
        """
        here = places[1:-1, 0]
        before = np.maximum(here - 1, 0)
        goes_on = ~self._abroad[0][here]
        for column in (self._segment[0], self._instance[0]):
            goes_on &= column[here] == column[before]
        for s, watched in enumerate(self.watched):
            at = places[1:-1, s]
            goes_on &= (at == places[:-2, s]) | ~watched[np.maximum(at - 1, 0)]
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
        self._places, self._ops = places, ops[places + np.array(self._first_item)]
        first_wait = [np.searchsorted(waits, places[:, s]) for s, waits in enumerate(self._wait_items)]
        self._first_wait = np.stack(first_wait, axis=1)
        needed = [needs[places[:, 1 + s]] for s, needs in enumerate(self._needs)]
        self.needed = packed(np.stack(needed, axis=1).ravel()) if needed else array("i")
        self._launched_by = array("q", launched.tobytes())

    def patterns(self, begins: IntArray, stops: IntArray, known: Patterns) -> list[Pattern]:
        """Of the chains between places ``begins`` and ``stops``.

        Where two begin at the same place of a template and are as long, they are the same.
        """
        places, ops, tape = self._places, self._ops, self._tape
        first, last = places[begins], places[stops]
        instance = self._instance[0][first[:, 0]]
        last_instance = instance.copy()
        for s, column in enumerate(self._instance):
            some = last[:, s] > first[:, s]
            np.maximum(last_instance, column[last[:, s] - 1], out=last_instance, where=some)
        begins_at = tape.order[ops[begins, 0]] - tape.flat.first[instance]
        where = np.concatenate(
            [
                np.stack([tape.flat.program.template[instance], begins_at], axis=1),
                last - first, ops[stops] - ops[begins],
            ], axis=1,
        )  # fmt: skip
        keys = [row.tobytes() for row in np.ascontiguousarray(where, dtype=np.int64)]
        for s, watched in enumerate(self.watched):
            bounds = zip(keys, first[:, s].tolist(), last[:, s].tolist(), strict=True)
            keys = [key + watched[lo:hi].tobytes() for key, lo, hi in bounds]
        for number in np.flatnonzero(last_instance > instance).tolist():  # what it begins in says it else
            spanned = tape.flat.program.template[instance[number] : last_instance[number] + 1]
            keys[number] += spanned.tobytes()
        placed = known.placed.setdefault((tape.kernels, self._streams), {})
        new = {key: number for number, key in enumerate(keys) if key not in placed}
        if new:
            numbers = list(new.values())
            lo, hi = begins[numbers], stops[numbers]
            cells = self._cells(ranges(lo, hi - lo), known)
            ends = np.cumsum(hi - lo).tolist()
            for key, begin, end in zip(new, [0, *ends], ends, strict=False):
                content = tuple(cells[begin:end])
                pattern = known.patterns.get(content)
                if pattern is None:
                    pattern = known.patterns[content] = Pattern.of(content)
                placed[key] = pattern
        return [placed[key] for key in keys]

    def chain(self, lo: int, hi: int, pattern: Pattern) -> Chain:
        """The chain of the cells between places ``lo`` and ``hi``."""
        launched = self._launched_by[lo:hi]
        return Chain(lo, self._segment_of[self._places[lo, 0]], launched, max(launched), pattern)

    def _cells(self, numbers: IntArray, known: Patterns) -> list[Cell]:
        """The cells that begin at places, known by what happens in them, wherever they stand.

        All has been launched long ago, so that times of launches do not count.
        """
        begin, end = self._places[numbers], self._places[numbers + 1]
        ops = self._ops[numbers], self._ops[numbers + 1]
        waits = self._first_wait[numbers], self._first_wait[numbers + 1]
        here = np.arange(len(numbers))
        which: list[IntArray] = []  # of the cells, for each thing in them
        things: list[npt.NDArray[np.void]] = []
        for s in range(len(self._streams)):
            size = ops[1][:, s] - ops[0][:, s]
            op = ranges(ops[0][:, s], size)
            which.append(np.repeat(here, size))
            things.append(_things(4 * s, self._content[op]))
            size = end[:, s] - begin[:, s]
            item = ranges(begin[:, s], size)
            which.append(np.repeat(here, size))
            things.append(_things(4 * s + 1, self._sizes[s][item]))
            watched = np.flatnonzero(self.watched[s][item])
            which.append(which[-1][watched])
            things.append(_things(4 * s + 3, item[watched] - begin[which[-1], s]))
            size = waits[1][:, s] - waits[0][:, s]
            wait, mine = self._waits[s][ranges(waits[0][:, s], size)], np.repeat(here, size)
            since = wait[:, 2] - begin[mine, wait[:, 1]]
            inside = since >= 0
            which.append(mine[inside])
            waiting = wait[:, 0] - begin[mine, s]
            things.append(_things(4 * s + 2, waiting[inside], wait[inside, 1], since[inside]))
        of = np.concatenate(which)
        content = np.concatenate(things)[np.argsort(of, kind="stable")].tobytes()
        ends = np.cumsum(np.bincount(of, minlength=len(numbers)) * _THING.itemsize).tolist()
        cells: list[Cell] = []
        for number, (lo, hi) in enumerate(zip([0, *ends], ends, strict=False)):
            key = (self._streams, content[lo:hi])
            cell = known.cells.get(key)
            if cell is None:
                sides = (side[number].tolist() for side in (begin, end, *ops))
                cell = known.cells[key] = self._made(*sides)
            cells.append(cell)
        return cells

    def _made(self, begin: list[int], end: list[int], first_op: list[int], end_op: list[int]) -> Cell:
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
        bounds = list(zip(begin, end, first_op, end_op, strict=True))
        shape = tuple((hi - lo, op_hi - op_lo) for lo, hi, op_lo, op_hi in bounds)
        watched = [
            (s, item)
            for s, (lo, hi, *_) in enumerate(bounds)
            for item in np.flatnonzero(self.watched[s][lo:hi]).tolist()
        ]
        return Cell(tuple(out), calls, tuple(dict.fromkeys(calls)), shape, tuple(watched))


def _things(what: int, *values: IntArray) -> npt.NDArray[np.void]:
    """Things in cells as rows of numbers: what each is, and up to three values."""
    rows = np.zeros(len(values[0]), dtype=_THING)
    rows["what"] = what
    for name, column in zip(("one", "two", "three"), values, strict=False):
        rows[name] = column
    return rows


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
