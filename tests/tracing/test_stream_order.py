"""What runs beside what and what waits, by the rules of CUDA and NCCL: sections of a program, simulated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import simcore
from simcore.graph import save_graph
from simcore.graph.ops import OpKind
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.drive.trace import trace_in

SCRIPT = Path(__file__).parent / "scripts" / "streams.py"
#: By section of the script, in its order: "a<b": b begins when a has ended; "a&b": both run at a time; "a'":
#: the backward pass of a.
RULES = {
    "a_hook_leaves_the_stream": "a<c' c'&a' a'<b",
    "custom_functions_on_two_streams": "a&b a<a' b<b' a'&b' a'<c b'<c",
    "a_backward_pass_is_called_elsewhere": "a<a' a'<b a'<c b&c",  # the pass is on the main stream
    "the_host_waits_for_an_event": "a<b a<c b&c",
    "the_host_waits_for_a_barrier": "a<c",
    "the_host_waits_as_long_as_it_says": "a<c",
    "copies_to_the_device": "a<b a&c c<d d<e",
    "copies_to_the_host": "a<b a&c c<d d<e",
    "threads_have_streams_of_their_own": "a&b a&c a<d b&d",
    "streams_come_from_a_pool": "a<b b<c",
    "a_captured_branch_waits_for_the_replay": "a<b a<c b&c b<d c<d",
    "messages_beside_collectives": "a&b c<d",
}


@pytest.fixture(scope="module")
def spans(
    pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[int, str], tuple[int, int]]:
    """(start, end) in ps of each op of rank 0, by section and letter."""
    graph = trace_in(pool, ScriptJob(SCRIPT, world_size=2))
    folder = tmp_path_factory.mktemp("streams") / "graph"
    save_graph(graph, folder)
    run = simcore.simulate(simcore.load(folder, cluster="h100-2"))
    times = run.timeline.rank(0, ["op_id", "start_ps", "end_ps"])
    ops, row = graph.ops, graph.flat_ops(graph.programs[int(graph.program_of_rank[0])]).row
    found = {}
    for op, start, end in zip(times["op_id"], times["start_ps"], times["end_ps"], strict=True):
        at = int(row[op])
        moved = int(ops.num_bytes[at]) or int(ops.bytes_read[at]) * (ops.kind[at] == OpKind.MEMCPY)
        if ops.name[at].startswith("aten::mm"):
            number = (int(re.findall(r"\d+", ops.in_shapes[at])[0]) - 4096) // 8
        elif moved >= 4 << 24:
            number = moved // 4 - (1 << 24)
        else:
            continue
        back = ops.phase[at] == "bwd" and ops.name[at].startswith("aten::mm")
        letter = "abcdefgh"[number % 8] + "'" * back
        found[number // 8, letter] = (int(start), int(end))
    return found


@pytest.mark.parametrize("section", RULES)
def test_sections(section: str, spans: dict[tuple[int, str], tuple[int, int]]) -> None:
    number = list(RULES).index(section)
    for rule in RULES[section].split():
        one, how, other = re.fullmatch(r"(.'?)([<&])(.'?)", rule).groups()  # type: ignore[union-attr]
        (begin, end), (start, stop) = spans[number, one], spans[number, other]
        assert end <= start if how == "<" else max(begin, start) < min(end, stop), (rule, spans[number, one])
