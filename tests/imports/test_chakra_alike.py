"""Ranks of Chakra files that play the same are one program, read once; what is played stays what it was."""

import json

import pytest

from simcore.graph import GraphBuilder, verify
from simcore.graph.schedules import one_f_one_b
from simcore.hardware import load_cluster
from simcore.run import Setup, run
from tests.pipelines import pipeline_graph
from workloads.imports import import_traces
from workloads.imports.chakra import export_chakra
from workloads.imports.chakra.alike import Meanings
from workloads.imports.chakra.read import ChakraNode, write_nodes
from workloads.imports.chakra.schema import NodeType
from workloads.imports.files import TraceFile

US = 10**6


def nodes_of(**attributes):
    """A kernel, then what ``attributes`` say of communication (by default a send)."""
    given = {"comm_size": 4096, **attributes}
    return [
        ChakraNode(1, "gemm", NodeType.COMP, duration_ps=9 * US, attributes={"num_ops": 1 << 30}),
        ChakraNode(2, "exchange", given.pop("type", NodeType.COMM_SEND), data_deps=(1,), attributes=given),
    ]


def programs(folder, ranks, groups=None):
    """The ranks of each program of these files, by rank a list of nodes."""
    for rank, nodes in enumerate(ranks):
        with (folder / f"job.{rank}.et").open("wb") as handle:
            write_nodes(handle, nodes)
    if groups:
        (folder / "comm_group.json").write_text(groups)
    job = import_traces([folder])
    assert [rank.rank for rank in job.report.ranks] == list(range(len(ranks)))
    return [program.rank_list() for program in job.graph.programs]


def test_a_pipeline_is_read_once_per_stage_and_plays_the_same(tmp_path, monkeypatch):
    # 4 stages of 2 tensor-parallel ranks, which exchange with the rank of the same place in other stages.
    graph = pipeline_graph(one_f_one_b(4, 8), forward=1_000, backward=2_000, num_bytes=4096, tp=2)
    export_chakra(graph, tmp_path)
    job = import_traces([tmp_path])
    assert [program.rank_list() for program in job.graph.programs] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert not verify(job.graph)
    monkeypatch.setattr(Meanings, "program", lambda self, file: None)
    alone = import_traces([tmp_path])
    assert [program.rank_list() for program in alone.graph.programs] == [[rank] for rank in range(8)]
    assert alone.report == job.report
    cluster = load_cluster("h100-8", {})
    assert (
        run(job.graph, cluster, Setup()).result.step_ps == run(alone.graph, cluster, Setup()).result.step_ps
    )


def test_fused_launches_of_a_repeated_template_stay_apart(tmp_path):
    # Each microbatch sends after its own kernel: in one launch they would all wait for the last of those.
    build = GraphBuilder(world_size=2, name="two")
    build.group("pp", dims=((2, 1),))
    send, receive = build.template("fwd"), build.template("fwd")
    work = send.compute("gemm", recorded_ps=7 * US)
    send.send("pp", +1, 4096, waits=(work,), batch=0)
    send.sync()
    receive.recv("pp", -1, 4096, batch=0)
    build.program([0], [(send, m, 0) for m in range(3)], stage=0)
    build.program([1], [(receive, m, 0) for m in range(3)], stage=1)
    graph = build.build()
    export_chakra(graph, tmp_path)
    back, cluster = import_traces([tmp_path]).graph, load_cluster("h100-8", {})
    assert run(back, cluster, Setup()).result.step_ps == run(graph, cluster, Setup()).result.step_ps


def test_one_of_each_kind_is_decoded(tmp_path, monkeypatch):
    graph = pipeline_graph(one_f_one_b(4, 8), forward=1_000, backward=2_000, num_bytes=4096, tp=2)
    export_chakra(graph, tmp_path)
    from workloads.imports.chakra import to_graph

    read, decode = [], to_graph.read_nodes

    def noted(source: TraceFile):
        read.append(source.path.name)
        return decode(source)

    monkeypatch.setattr(to_graph, "read_nodes", noted)
    import_traces([tmp_path])
    assert read == ["rank.0.et", "rank.2.et", "rank.4.et", "rank.6.et"]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([1, 2, 3, 0], [[0, 1, 2, 3]]),  # one further on, around
        ([1, 0, 3, 2], [[0, 2], [1, 3]]),  # one further on, one back
        ([2, 3, 0, 0], [[0, 1, 2], [3]]),
    ],
)
def test_peers_count_from_the_rank(tmp_path, ends, expected):
    assert (
        programs(tmp_path, [nodes_of(comm_dst=end, comm_tag=rank) for rank, end in enumerate(ends)])
        == expected
    )


@pytest.mark.parametrize(
    ("groups", "names", "expected"),
    [
        ('{"a": [0, 1], "b": [2, 3], "c": [0, 1, 2, 3]}', "aabb", [[0, 1, 2, 3]]),
        ('{"a": [0, 1, 2], "b": [3]}', "aaab", [[0, 1, 2], [3]]),
        ('{"a": [0, 1], "b": [1, 2]}', "aab", [[0, 1], [2]]),  # rank 1 is in both
    ],
)
def test_groups_named_at_the_same_place_are_a_family(tmp_path, groups, names, expected):
    calls = [nodes_of(type=NodeType.COMM_COLL, comm_type=0, pg_name=name) for name in names]
    assert programs(tmp_path, calls, groups) == expected


def test_groups_are_told_by_content_and_play_as_ranks_alone_do(tmp_path, monkeypatch):
    # Tensor-parallel pairs, then data parallelism across them; the file of groups has the generator's name.
    groups = {"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
    for rank in range(4):
        nodes = nodes_of(type=NodeType.COMM_COLL, comm_type=0, pg_name=str(1 + rank // 2))
        also = {"comm_type": 0, "comm_size": 1 << 20, "pg_name": str(3 + rank % 2)}
        nodes.append(ChakraNode(3, "gradients", NodeType.COMM_COLL, data_deps=(2,), attributes=also))
        with (tmp_path / f"workload.{rank}.et").open("wb") as handle:
            write_nodes(handle, nodes)
    (tmp_path / "workload.json").write_text(json.dumps(groups))
    together = import_traces([tmp_path])
    assert len(together.graph.programs) == 1
    assert not any("without a known group" in doubt for doubt in together.report.doubts())
    monkeypatch.setattr(Meanings, "program", lambda self, file: None)
    alone = import_traces([tmp_path])
    assert len(alone.graph.programs) == 4
    cluster = load_cluster("h100-8", {})
    step_ps, alone_ps = (run(job.graph, cluster, Setup()).result.step_ps for job in (together, alone))
    assert step_ps == alone_ps


def test_what_a_message_says_besides_tells_ranks_apart(tmp_path):
    ranks = [nodes_of(comm_dst=(rank + 1) % 4, comm_size=4096 + (rank == 2)) for rank in range(4)]
    assert programs(tmp_path, ranks) == [[0, 1, 3], [2]]
    first = nodes_of(comm_dst=1)
    first[0] = ChakraNode(1, "gemm", NodeType.COMP, duration_ps=8 * US, attributes={"num_ops": 1 << 30})
    assert programs(tmp_path, [first, *ranks[1:]]) == [[0], [1, 3], [2]]


def test_a_name_that_looks_like_a_group_is_a_name(tmp_path):
    # The bytes of an attribute inside of a name: cut there, two names would seem to be one.
    ranks = [nodes_of(comm_dst=(rank + 1) % 2) for rank in range(2)]
    for rank, nodes in enumerate(ranks):
        trick = f"x\x52\x0d\n\x07pg_name\x32\x02{rank}{rank}"
        nodes[1] = ChakraNode(2, trick, NodeType.COMM_SEND, attributes=nodes[1].attributes)
    assert programs(tmp_path, ranks) == [[0], [1]]


def test_recorded_ranks_stand_for_themselves(tmp_path):
    timed = [
        ChakraNode(1, "gemm", NodeType.COMP, (), (), 5 * US, 9 * US, attributes={"num_ops": 1 << 30}),
    ]  # fmt: skip
    assert programs(tmp_path, [timed, timed]) == [[0], [1]]
