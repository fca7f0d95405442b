"""Which ops of a graph are meant: by words and patterns of their rows, and by where they are in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError, nearest
from simcore.graph import FlatOps, Graph
from simcore.graph.flatten import StreamOrder
from simcore.graph.kinds import KIND_NAMES
from simcore.outside import found_in
from simcore.records import dataclass

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
#: A number, several, or a function that says of each whether it is meant; -1 is the last.
Pick = int | Iterable[int] | Callable[[int], bool]
Words = str | Iterable[str]
_LONG = 40  # letters of a pattern that is no misspelt name


class Steps:
    """The step of each program of a graph, op by op."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def flat(self, program: int) -> FlatOps:
        """The step of a program, op by op."""
        return self._flats[program]

    @cached_property
    def _flats(self) -> list[FlatOps]:
        return [self.graph.flat_ops(program) for program in self.graph.programs]

    @lru_cache(maxsize=256)  # noqa: B019  (a view lives as long as its rule runs)
    def stream_order(self, program: int) -> StreamOrder:
        """The step of a program, stream by stream."""
        return StreamOrder.of(self.graph, self.flat(program))

    def streams(self, program: int) -> npt.NDArray[np.int32]:
        """Code of the stream of each flat op."""
        return self.graph.ops.stream.codes[self.flat(program).row]

    def keys(self, program: int, at: IntArray, by: Sequence[str]) -> IntArray:
        """A number for each of the flat ops ``at``; equal where all that they are counted ``by`` is."""
        if not by or not len(at):
            return np.zeros(len(at), dtype=np.int64)
        columns = np.stack([self._column(program, key)[at] for key in by])
        return np.unique(columns, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)

    def _column(self, program: int, key: str) -> IntArray:
        flat = self.flat(program)
        match key:
            case "layer":
                return self.layer(program)
            case "module":
                return self.graph.ops.module.codes[flat.row].astype(np.int64)
            case "chunk":
                return self.chunk(program)
            case "microbatch":
                return flat.microbatch.astype(np.int64)
        return flat.instance.astype(np.int64)

    def chunk(self, program: int) -> IntArray:
        """Chunk of each flat op."""
        flat = self.flat(program)
        return flat.program.chunk[flat.instance].astype(np.int64)

    def layer(self, program: int) -> IntArray:
        """Layer of the whole model of each flat op, -1 outside layers."""
        flat = self.flat(program)
        layer = self.graph.ops.layer[flat.row]
        offset = np.array(flat.program.layer_offset, dtype=np.int64)[self.chunk(program)]
        return np.where(layer >= 0, layer + offset, -1)

    @cached_property
    def num_layers(self) -> int:
        """Layers of the whole model, as far as ops say."""
        programs = range(len(self.graph.programs))
        return 1 + max((int(self.layer(one).max(initial=-1)) for one in programs), default=-1)


@dataclass
class Narrowed:
    """Rows of a graph's ops that are ``left``, what was ``said`` of them, what left none (``missing``)."""

    graph: Graph
    left: BoolArray
    said: list[str]
    missing: str = ""

    @classmethod
    def all(cls, graph: Graph) -> Narrowed:
        """Nothing said yet."""
        return cls(graph, np.ones(len(graph.ops), dtype=np.bool_), [])

    def keep(self, mask: BoolArray, what: str, hint: str = "") -> None:
        """Only those of ``mask``."""
        self.said.append(what)
        if self.left.any() and not (self.left & mask).any():
            self.missing = f"none of those has {what}{hint}" if self.said[1:] else f"none has {what}{hint}"
        self.left = self.left & mask

    def matching(self, column: str, pattern: str) -> None:
        """Only those of which a regular expression finds something in a column of text."""
        values = getattr(self.graph.ops, column)
        mask = np.array(found_in(pattern, values.values, column), dtype=np.bool_)[values.codes]
        used = {values.values[code] for code in np.unique(values.codes[self.left]).tolist()}
        self.keep(mask, f"{column} {pattern!r}", nearest(pattern, used) if len(pattern) < _LONG else "")

    def worded(self, column: str, words: Words) -> None:
        """Only those with one of these words in a column.  InputError for a word that no op has there."""
        wanted = [words] if isinstance(words, str) else list(words)
        ops = self.graph.ops
        if column == "kind":
            known = set(KIND_NAMES)
            mask = np.isin(ops.kind, [KIND_NAMES.index(word) for word in wanted if word in known])
        else:
            values = getattr(ops, column)
            known = {values.values[code] for code in np.unique(values.codes).tolist()}
            mask = np.isin(values.codes, [values.values.index(word) for word in wanted if word in known])
        for word in wanted:
            if word not in known:
                raise InputError(f"no op has {column} {word!r}{nearest(str(word), known - {''})}")
        self.keep(mask, f"{column} {shown(words)}")


def picked(pick: Pick, values: npt.NDArray[Any], number: int) -> BoolArray:
    """Which of ``values`` are meant, of ``number`` that there are; negative ones count from the end."""
    if callable(pick):
        known = [value for value in np.unique(values).tolist() if value >= 0 and pick(value)]
        return np.isin(values, known)
    wanted = [pick] if isinstance(pick, int) else list(pick)
    mask: BoolArray = np.isin(values, [one if one >= 0 else number + one for one in wanted])
    return mask & (values >= 0)


def shown(what: Any) -> str:
    """What was said, for messages."""
    if callable(what):
        return f"by {getattr(what, '__name__', 'a function')}"
    if isinstance(what, str | int | range):
        return f"{what!r}"
    return ", ".join(map(repr, what))
