"""Layers inside the recorded forwards and backwards of stages, told by the kernels that they share."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError
from simcore.graph import Action, Strings
from simcore.graph.ops import IntArray
from simcore.records import dataclass
from workloads.edits.job import EditableJob
from workloads.edits.recorded.repeats import WHOLE, levels
from workloads.edits.recorded.stages.actions import RecordedAction, main_kernels
from workloads.edits.recorded.stages.pipelines import Recorded

_SIZES = re.compile(r"<.*|\d+")


@dataclass(frozen=True)
class Cut:
    """Rows of an action's body: before its layers, each layer in the order in which it runs, behind them."""

    head: IntArray
    layers: tuple[IntArray, ...]
    tail: IntArray


class Layers:
    """The layers of recorded stages.

    ``counts[s]`` is how many stage ``s`` has.
    Errors: InputError where they are not seen.
    """

    def __init__(self, job: EditableJob, recorded: Recorded) -> None:
        self._job, self._recorded = job, recorded
        graph = job.graph
        self.counts: list[int] = []
        self._is_backward = graph.ops.phase.equals("bwd")
        self._main: npt.NDArray[np.bool_] = np.zeros(len(graph.ops), dtype=np.bool_)
        for index, rank in enumerate(job.ranks):
            first = int(graph.template_start[index])
            self._main[first + rank.flat[main_kernels(job, index)]] = True
        try:
            self.counts = self._recognised(graph.ops.name.codes.astype(np.int64))
        except InputError:
            # Libraries choose among kernels of one kind: sizes in names, and template arguments, may differ.
            rough = Strings.encode([_SIZES.sub("#", name) for name in graph.ops.name.values]).codes
            self.counts = self._recognised(rough[graph.ops.name.codes].astype(np.int64))

    def _recognised(self, codes: IntArray) -> list[int]:
        """Layers of each stage, kernels being alike where their ``codes`` (by row) are equal."""
        self._codes = codes
        pp, chunks = len(self._recorded.stages), self._recorded.num_chunks
        # Where a forward begins with a layer: behind the first stage; a backward: before the last.
        self._layer = {
            "F": self._repeated(pp - 1, Action("F", 0, chunks - 1)),
            "B": self._repeated(0, Action("B", 0, 0)),
        }
        found = {kind: [self._count(s, kind) for s in range(pp)] for kind in "FB"}
        if found["F"] != found["B"] or 0 in found["F"]:
            raise InputError(
                "layers are not recognised alike in all stages: forwards of stages hold"
                f" {', '.join(map(str, found['F']))} of them, backwards {', '.join(map(str, found['B']))}"
            )
        return found["F"]

    def stage(self, index: int, stage: int, step: int, kind: str, microbatch: int) -> Cut:
        """A microbatch's forward or backward of a stage, all its model chunks together."""
        chunks = range(self._recorded.num_chunks)
        parts = [
            self._cut(self._piece(index, stage, step, Action("F" if kind == "F" else "B", microbatch, chunk)))
            for chunk in (chunks if kind == "F" else reversed(chunks))
        ]
        layers = [list(part.layers) for part in parts]
        found = sum(map(len, layers))
        if self.counts and found != self.counts[stage]:
            word = "forward" if kind == "F" else "backward"
            raise InputError(
                f"the {word} of microbatch {microbatch} on stage {stage} shows {found} layers, others"
                f" {self.counts[stage]}: what runs between them cannot be moved with them"
            )
        for before, after in zip(range(len(parts) - 1), range(1, len(parts)), strict=True):
            layers[before][-1] = np.concatenate([layers[before][-1], parts[before].tail])
            layers[after][0] = np.concatenate([parts[after].head, layers[after][0]])
        return Cut(parts[0].head, tuple(layer for own in layers for layer in own), parts[-1].tail)

    def _piece(self, index: int, stage: int, step: int, action: Action) -> RecordedAction:
        return self._recorded.steps[index][step].pieces[self._recorded.order[stage].index(action)]

    def _count(self, stage: int, kind: str) -> int:
        return len(self.stage(self._recorded.stages[stage][0], stage, 0, kind, 0).layers)

    def _kernels(self, piece: RecordedAction) -> IntArray:
        """An action's own kernels: where host events tell backwards, others beside one are none of it."""
        kernels = piece.body[self._main[piece.body]]
        own = self._is_backward[kernels]
        return kernels[own] if piece.kind == "B" and own.any() else kernels

    def _repeated(self, stage: int, action: Action) -> list[int]:
        """Names of the kernels of a layer, in order."""
        kernels = self._kernels(self._piece(self._recorded.stages[stage][0], stage, 0, action))
        codes = self._codes[kernels]
        time = self._job.graph.ops.recorded_ps[kernels]
        runs = [run for level in levels(codes, time)[:1] for run in level.runs]
        run = max(runs, key=lambda run: run.period * run.count, default=None)
        if run is not None and time[run.start : run.stop].sum() >= WHOLE * time.sum():
            return [int(code) for code in codes[run.start : run.start + run.period]]
        pp = len(self._recorded.stages)
        if pp > 2 and self._recorded.num_chunks == 1:
            middle = self._kernels(self._piece(self._recorded.stages[1][0], 1, 0, action))
            return [
                int(code) for code in self._job.graph.ops.name.codes[middle]
            ]  # a stage between has layers alone
        word = "forward" if action.kind == "F" else "backward"
        raise InputError(
            f"no group of kernels makes up half of a {word} of stage {stage} by repetition: its layers are"
            " not seen, and cannot be moved"
        )

    def _cut(self, piece: RecordedAction) -> Cut:
        kernels = self._kernels(piece)
        codes = self._codes[kernels].tolist()
        layer = self._layer[piece.kind]
        start, count = _longest_chain(codes, layer)
        at = [start + number * len(layer) for number in range(count + 1)]
        rows = [int(piece.body[0]) if not place else int(kernels[place - 1]) + 1 for place in at]
        end = int(piece.body[-1]) + 1
        return Cut(
            np.arange(int(piece.body[0]), rows[0]),
            tuple(np.arange(one, two) for one, two in pairwise(rows)),
            np.arange(rows[-1], end),
        )


def _longest_chain(codes: list[int], layer: list[int]) -> tuple[int, int]:
    """Begin and number of the most copies of ``layer`` that follow one another."""
    size = len(layer)
    first = layer[0]
    hits = {
        at for at in range(len(codes) - size + 1) if codes[at] == first and codes[at : at + size] == layer
    }
    best = (0, 0)
    for at in sorted(hits):
        if at - size in hits:
            continue
        count = 1
        while at + count * size in hits:
            count += 1
        if count > best[1]:
            best = (at, count)
    return best
