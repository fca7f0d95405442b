"""What belongs to a forward op runs on its stream in the backward pass, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tracing.against import events
from workloads.tracing.drive import rank_run
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.script_job import ScriptJob

SCRIPT = Path(__file__).parent / "scripts" / "branches.py"


def step(pool: WorkerPool, what: str) -> list[tuple[str, str, list[int]]]:
    """Name, stream and waits of the ops of a step."""
    job = ScriptJob(SCRIPT, (what,), world_size=2, gpus_per_node=2)
    found = pool.submit(rank_run.run_rank, job, 0).result()
    return [(one.name.partition(".")[0], one.stream, one.waits) for one in events(found.program)]


def backward(pool: WorkerPool, what: str) -> tuple[int, list[tuple[str, str, list[int]]]]:
    """The ops from the backward pass on, and how many stand before it."""
    ops = step(pool, what)
    begin = next(index for index, one in enumerate(ops) if one[0] == "aten::ones_like")
    return begin, ops[begin:]


@pytest.mark.parametrize("what", ["layers", "thread"])
def test_a_backward_pass_takes_the_streams_of_its_forward_pass(what: str, pool: WorkerPool) -> None:
    """Whatever stream is current in another thread."""
    begin, ops = backward(pool, what)
    compute, side = "compute", "side.1"
    assert ops[:-1] == [
        ("aten::ones_like", compute, []),
        # Of the layer that ran last: its input's gradient, its weight's, its bias's.
        ("aten::mm", compute, []),
        ("aten::mm", compute, []),
        ("aten::sum", compute, []),
        # Beside it the other one's, which waits for what it is given.
        ("aten::mm", side, [begin]),
        ("aten::mm", side, []),
        ("aten::sum", side, []),
        # Both give the shared layer a gradient; the sum runs on its stream, behind all that the other issued.
        ("aten::add", compute, [begin + 6]),
        ("aten::mm", compute, []),
        ("aten::sum", compute, []),
    ]
    # The optimizer comes behind all of it.
    assert ops[-1] == ("aten::_foreach_add_", compute, [])


def test_a_custom_function_goes_back_on_the_stream_that_applied_it(pool: WorkerPool) -> None:
    begin, ops = backward(pool, "function")
    assert [one for one in ops if one[1] != "compute"] == [
        ("aten::div", "side.1", [begin]),  # not on the stream on which its forward pass computed
    ]
    assert ops[5] == ("aten::add", "compute", [begin + 4])


def test_a_view_goes_back_on_the_stream_on_which_it_was_taken(pool: WorkerPool) -> None:
    _, ops = backward(pool, "view")
    names = [name for name, stream, _ in ops if stream == "side.1"]
    assert "aten::slice_backward" in names and "aten::mm" not in names


def test_what_ddp_hooks_to_gradients_runs_where_it_was_made(pool: WorkerPool) -> None:
    """Its reducer keeps the sums into gradients on the stream that was current then."""
    _, ops = backward(pool, "ddp")
    beside = [name for name, stream, _ in ops if stream == "side.1"]
    assert beside == ["aten::mm", "aten::mm", "aten::sum"]
    reduced = [waits for name, _, waits in ops if name == "all_reduce"]
    assert len(reduced) > 2 and all(reduced)


def test_what_is_computed_again_takes_its_streams_and_hands_them_back(pool: WorkerPool) -> None:
    _, ops = backward(pool, "again")
    beside = [name for name, stream, _ in ops if stream == "side.1"]
    # The layer itself, its gradients, and the sum of what both give the input, which it was first to use.
    assert beside == ["aten::addmm", "aten::mm", "aten::mm", "aten::sum", "aten::add"]
    assert [stream for name, stream, _ in ops if name == "aten::_foreach_add_"] == ["compute"]


def test_a_backward_pass_asked_for_on_another_stream_stays_on_that_of_the_forward_pass(
    pool: WorkerPool,
) -> None:
    _, ops = backward(pool, "late")
    assert [name for name, stream, _ in ops if stream != "compute"] == ["aten::ones_like"]
    assert sum(name == "aten::mm" for name, *_ in ops) == 5


def test_fsdp1_puts_gradients_together_on_the_stream_of_its_gathers(pool: WorkerPool) -> None:
    """It takes views of what it has gathered there; seen on GPUs in pytorch/pytorch's issue 133849."""
    ops = step(pool, "fsdp1")
    streams = [
        [stream for name, stream, _ in ops if name == wanted] for wanted in ("all_gather", "aten::cat")
    ]
    assert streams[0] == streams[1] != ["compute"]


def test_communication_that_is_left_to_the_next_step_is_said(pool: WorkerPool) -> None:
    job = ScriptJob(SCRIPT, ("next",), world_size=2, gpus_per_node=2)
    found = pool.submit(rank_run.run_rank, job, 0).result()
    (said,) = [one for one, _ in found.asked if one.kind == "late"]
    line = next(
        number
        for number, text in enumerate(SCRIPT.read_text(encoding="utf-8").splitlines(), 1)
        if "one.wait()" in text
    )
    assert said.site == f"branches.py:{line}" and "waited for" in said.rule
