"""What belongs to a forward op runs on its stream in the backward pass, too."""

from __future__ import annotations

from pathlib import Path

from tests.tracing.against import events
from workloads.tracing.drive import rank_run
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.script_job import ScriptJob

SCRIPT = Path(__file__).parent / "scripts" / "branches.py"


def test_a_backward_pass_takes_the_streams_of_its_forward_pass(pool: WorkerPool) -> None:
    found = pool.submit(rank_run.run_rank, ScriptJob(SCRIPT), 0).result()
    ops = [(one.name.partition(".")[0], one.stream, one.waits) for one in events(found.program)]
    begin = next(index for index, one in enumerate(ops) if one[0] == "aten::ones_like")
    compute, side = "compute", "side.1"
    assert ops[begin:-1] == [
        ("aten::ones_like", compute, []),
        # Of the layer that ran last: its input's gradient, its weight's, its bias's.
        ("aten::mm", compute, []),
        ("aten::mm", compute, []),
        ("aten::sum", compute, []),
        # Beside it the other one's, which waits for what it is given.
        ("aten::mm", side, [begin]),
        ("aten::mm", side, []),
        ("aten::sum", side, []),
        # Both give the shared layer a gradient; the sum waits for the first, the layer for the sum.
        ("aten::add", side, [begin + 1]),
        ("aten::mm", compute, [begin + 7]),
        ("aten::sum", compute, []),
    ]
    # The optimizer comes behind all of it.
    assert ops[-1] == ("aten::_foreach_add_", compute, [])
