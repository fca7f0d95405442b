"""Gradients of weights apart from those of inputs, for schedules that put them off."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcore.cost.framework_op import described_inputs
from simcore.errors import InputError
from simcore.graph import OpKind
from simcore.graph.ops import IntArray
from workloads.edits.job import EditableJob
from workloads.edits.recorded.sizes import known_calls, told_features
from workloads.edits.recorded.stages.program import ProgramWriter


class WeightGradients:
    """Which rows of a backward compute gradients of weights.

    Products over the tokens, where shapes were recorded; else ``assumed_share`` of every kernel's time.
    """

    def __init__(self, job: EditableJob, assumed_share: float) -> None:
        self._job, self._share = job, assumed_share
        self._rows = _products_over_tokens(job)

    @property
    def told(self) -> str:
        """How they were told."""
        if self._rows is not None:
            return "gradients of weights are the products whose inner size is the tokens of a microbatch"
        return f"{self._share:.0%} of a backward is the gradients of weights"

    def part(self, rows: IntArray, kind: str) -> IntArray:
        """Rows of the part ("I" or "W") of a backward."""
        if self._rows is not None:
            chosen = self._rows[rows] if kind == "W" else ~self._rows[rows]
        else:
            chosen = (kind == "I") | (self._job.graph.ops.kind[rows] == OpKind.COMPUTE)
        part: IntArray = rows[chosen]
        return part

    def share(self, writer: ProgramWriter, begin: int, rows: list[int], kind: str) -> None:
        """Durations of the part's ops, written at ``begin``, where they are a share of the recorded ones."""
        if self._rows is not None:
            return
        ops = self._job.graph.ops
        share = self._share if kind == "W" else 1.0 - self._share
        for at, row in enumerate(rows, start=begin):
            if ops.kind[row] == OpKind.COMPUTE:
                writer.patches.setdefault(at, {})["recorded_ps"] = round(int(ops.recorded_ps[row]) * share)

    def seconds(self, rows: IntArray, kind: str) -> int:
        """Time of a part's kernels, ps."""
        ops = self._job.graph.ops
        if kind not in "IW":
            return int(ops.recorded_ps[rows[ops.kind[rows] != OpKind.HOST]].clip(0).sum())
        mine = self.part(rows, kind)
        time = ops.recorded_ps[mine[ops.kind[mine] != OpKind.HOST]].clip(0).sum()
        if self._rows is not None:
            return int(time)
        return round(int(time) * (self._share if kind == "W" else 1.0 - self._share))


def _products_over_tokens(job: EditableJob) -> npt.NDArray[np.bool_] | None:
    """Mask of rows that are such products; None where shapes tell none."""
    try:
        tokens = told_features(job, None).tokens
    except InputError:
        return None
    mask = np.zeros(len(job.graph.ops), dtype=np.bool_)
    for shapes, call, index, op in known_calls(job):
        inputs = [shape for shape, _ in described_inputs(shapes.in_shapes[call], shapes.in_types[call])]
        pair = [shape for shape in inputs if len(shape) == 2][-2:]
        if len(pair) == 2 and pair[0][-1] == pair[1][0] == tokens and pair[0][0] != tokens:
            mask[int(job.graph.template_start[index]) + int(job.ranks[index].flat[op])] = True
    return mask if mask.any() else None
