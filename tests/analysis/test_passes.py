"""Passes of a rank: which microbatch, which chunk and layers, and what was waited for."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import simcore
from simcore.analysis.passes import COLUMNS, HOST, rank_passes
from simcore.timeline import Timeline


def test_by_hand(two_stage_run: Path) -> None:
    """Rank 1 computes from 120 to 160 (forward) and from 160 to 180 (backward) when its recv has come."""
    timeline = Timeline.open(two_stage_run)
    found = rank_passes(timeline.rank_rows(1, COLUMNS), timeline.info.step_ps)
    compute = found.compute
    assert [compute.kinds[kind] for kind in compute.kind] == ["fwd", "bwd"]
    assert compute.start.tolist() == [120_000, 160_000]
    assert compute.end.tolist() == [160_000, 180_000]
    assert compute.first_layer.tolist() == [2, 2]  # of a stage whose first layer is the model's third
    assert found.gap_ps.tolist() == [120_000, 0]
    assert found.reasons == ("nccl::recv from rank 0",) or "from rank 0" in found.reasons[0]
    assert found.waited_for.tolist() == [0, -1]
    assert found.peer_ps.tolist() == [100_000, 0]  # the recv is ready at once, and starts at 100
    assert set(found.lanes) == {"pipeline", "data"}
    # Rank 0's first kernel begins at 0; the pause before its recomputation was for the recv.
    first = rank_passes(timeline.rank_rows(0, COLUMNS), timeline.info.step_ps)
    assert first.gap_ps[0] == 0 and first.waited_for[0] == -1


@pytest.fixture(scope="module")
def interleaved() -> simcore.SimulatedRun:
    """Eight layers on two stages of two chunks, eight microbatches."""
    model = {"layers": 8, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1024}
    parallel = {"tp": 2, "pp": 2, "virtual_stages": 2}
    training = {"seq": 256, "global_batch": 16, "micro_batch": 1}
    return simcore.simulate(simcore.describe(model, cluster="h100-8", parallel=parallel, training=training))


def test_an_interleaved_pipeline_is_its_schedule(interleaved: simcore.SimulatedRun) -> None:
    timeline = interleaved.timeline
    schedule, _ = simcore.describe(
        {"layers": 8, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1024}, cluster="h100-8",
        parallel={"tp": 2, "pp": 2, "virtual_stages": 2},
        training={"seq": 256, "global_batch": 16, "micro_batch": 1},
    ).complete.schedule()  # fmt: skip
    for rank, stage in ((0, 0), (4, 1)):
        found = rank_passes(timeline.rank_rows(rank, COLUMNS), timeline.info.step_ps)
        assert found.stage == stage
        compute = found.compute
        names = [compute.kinds[kind] for kind in compute.kind]
        told = [
            ("F" if name == "fwd" else "B", microbatch, chunk)
            for name, microbatch, chunk in zip(
                names, compute.microbatch.tolist(), compute.chunk.tolist(), strict=True
            )
            if name in ("fwd", "bwd") and microbatch >= 0
        ]
        wanted = [(action.kind, action.microbatch, action.chunk) for action in schedule[stage]]
        assert [one for one, _ in groupby(told)] == wanted  # a long pause parts a pass
        # Chunk 0 of stage 0 has layers 0 and 1, chunk 1 layers 4 and 5.
        layers = {
            (chunk, int(low), int(high))
            for name, chunk, low, high in zip(
                names, compute.chunk.tolist(), compute.first_layer, compute.last_layer, strict=True
            )
            if name == "fwd"
        }
        assert layers == {(0, 2 * stage, 2 * stage + 1), (1, 4 + 2 * stage, 5 + 2 * stage)}
        assert HOST not in found.reasons or found.gap_ps[0] > 0


def test_stretches_cover_what_ops_cover(interleaved: simcore.SimulatedRun) -> None:
    timeline = interleaved.timeline
    rows = timeline.rank_rows(0, COLUMNS)
    found = rank_passes(rows, timeline.info.step_ps)
    kind, names = rows.strings("kind")
    compute = np.isin(kind, [code for code, name in enumerate(names) if name in ("compute", "memcpy")])
    busy = rows.ints("end_ps")[compute] - rows.ints("start_ps")[compute]
    assert int(found.compute.busy_ps.sum()) <= int(busy.sum())
    assert int(found.compute.num_ops.sum()) == int((busy > 0).sum())
    for spans in found.lanes.values():
        joined = spans.joined(timeline.info.step_ps)
        assert len(joined) == 1
        assert int(joined.num_ops[0]) == int(spans.num_ops.sum())
        assert (int(joined.start[0]), int(joined.end[0])) == (int(spans.start.min()), int(spans.end.max()))
