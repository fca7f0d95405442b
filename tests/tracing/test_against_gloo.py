"""The traced script against the same script really run by two processes with gloo.

Known differences, each with its reason: FSDP2 averages with NCCL and sums with gloo (then divides); DDP's
reducer waits in C++, which no Python mode sees, so the place of its waits is checked on the trace alone.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.tracing.against import events, run_really
from workloads.tracing.drive import rank_run
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.record.templates import CutProgram

SCRIPT = Path(__file__).parent / "scripts" / "small.py"
#: Mode of the script -> processes.
MODES = {
    "ddp": 2,
    "accumulate": 2,
    "checkpoint": 2,
    "lora": 2,
    "unused": 2,
    "fsdp1": 2,
    "fsdp1_kept": 2,
    "fsdp2": 2,
    "tp": 2,
    "hsdp": 4,
    "beside": 2,
}

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(scope="module")
def really(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What rank 1 of the gloo processes did, by mode."""
    found = run_really(tmp_path_factory.mktemp("gloo"), SCRIPT, MODES)
    return {mode: ranks[1] for mode, ranks in found.items()}


def traced(pool: WorkerPool, mode: str) -> CutProgram:
    job = ScriptJob(SCRIPT, (mode,), world_size=MODES[mode], gpus_per_node=MODES[mode])
    found = pool.submit(rank_run.run_rank, job, 1).result()
    return found.program


@pytest.mark.parametrize("mode", MODES)
def test_collectives_are_those_of_a_real_run(pool: WorkerPool, really: dict[str, Any], mode: str) -> None:
    """Order, kind and bytes; every group is both ranks, with four of them those of its axis."""
    expected = [(event[1], event[2]) for event in really[mode] if event[0] == "call"]
    groups = {event[1]: event[3] for event in really[mode] if event[0] == "call"}
    if mode == "hsdp":
        assert groups == {"all_gather": [0, 1], "reduce_scatter": [0, 1], "all_reduce": [1, 3]}
    else:
        assert expected and all(members == [0, 1] for members in groups.values())
    found = [(one.name, one.num_bytes) for one in events(traced(pool, mode)) if one.is_call]
    assert found == expected


@pytest.mark.parametrize("mode", ["tp", "beside"])
def test_functional_collectives_are_waited_for_where_a_real_run_waits(
    pool: WorkerPool, really: dict[str, Any], mode: str
) -> None:
    """The op that follows a wait in the real run is the one that waits for that collective in the trace."""
    expected, calls, waited = [], 0, 0
    pending = False
    for event in really[mode]:
        if event[0] == "call":
            calls += 1
        elif event[0] == "wait":
            waited, pending = calls, True
        elif pending and event[1] not in ("aten::view", "aten::detach", "aten::alias", "aten::t"):
            expected.append((event[1], waited))
            pending = False
    trace = events(traced(pool, mode))
    number = {index: 1 + sum(one[0] for one in trace[:index]) for index, one in enumerate(trace) if one[0]}
    found = [
        (str(name).partition(".")[0], max(number[source] for source in sources if source in number))
        for is_call, name, _, _, sources, _, _ in trace
        if not is_call and any(source in number for source in sources)
    ]
    assert found == expected


def test_ddp_is_told_which_parameters_nobody_used(pool: WorkerPool) -> None:
    trace = events(traced(pool, "unused"))
    told = next(index for index, one in enumerate(trace) if one.is_call and one.num_bytes == 4 * 3 * 6)
    # Behind the buckets; before the unused block's gradients are left as they were the host waits for it.
    assert told == max(index for index, one in enumerate(trace) if one.is_call)
    assert [one.name for one in trace if told in one.waits] == ["aten::copy_"]


def test_ddp_waits_for_each_bucket_before_it_copies_gradients_out(pool: WorkerPool) -> None:
    trace = events(traced(pool, "ddp"))
    calls = [index for index, one in enumerate(trace) if one[0]]
    assert len(calls) > 1  # 0.2 MB buckets: several
    waits = {source: index for index, one in enumerate(trace) for source in one[4] if source in calls}
    assert sorted(waits) == calls and all(trace[index][3] == "world" for index in calls)
    # Gradients leave the buckets in bucket order, behind the last call: each copy has its own bucket's wait.
    assert [waits[call] for call in calls] == sorted(waits[call] for call in calls)
    assert all(waits[call] > calls[-1] and "copy" in str(trace[waits[call]][1]) for call in calls)
