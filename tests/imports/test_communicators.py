"""Which calls of several ranks are one collective, whatever the traces say of groups; times in us."""

import pytest

from simcore.replay import replay_job
from tests.imports.traces import launched, write
from workloads.imports import import_kineto

REDUCE, EXCHANGE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ncclDevKernel_SendRecv"


def job(folder, ranks, *, skew=0.0):
    """Traces of ranks given as (name, start, length, stream, arguments of the kernel) of their ops."""
    paths = []
    for rank, ops in enumerate(ranks):
        events = [
            event
            for corr, (name, start, length, stream, args) in enumerate(ops, start=1)
            for event in launched(
                name, corr + skew * rank, start + skew * rank, length, corr=corr, stream=stream, **args
            )
        ]
        dist = {"rank": rank, "world_size": len(ranks)}
        paths.append(write(folder / f"r{rank}.json", events, distributedInfo=dist))
    return import_kineto(paths)


def spans(imported):
    return [round(row.replayed.span * 1e6, 3) for row in replay_job(imported)]


def group(members, **more):
    return {
        "Collective name": "allreduce", "Process Group Name": "1", "Process Group Ranks": members,
        "In msg nelems": 8, "Out msg nelems": 8, "dtype": "BFloat16", **more,
    }  # fmt: skip


def exchange(what, peer):
    towards = "Dst Rank" if what == "send" else "Src Rank"
    return group("[0, 1, 2]", **{"Collective name": what, towards: peer})


@pytest.mark.parametrize("skew", [0.0, 5000.0])
def test_sends_meet_receives_along_a_pipeline(tmp_path, skew):
    # 0 computes 20..60, sends until 70; 1 waits from 20 on, computes until 110, sends until 120; 2 likewise.
    ranks = [
        [("a", 20, 40, 7, {}), (EXCHANGE, 60, 10, 20, exchange("send", 1))],
        [
            (EXCHANGE, 20, 50, 20, exchange("recv", 0)), ("b", 70, 40, 7, {}),
            (EXCHANGE, 110, 10, 21, exchange("send", 2)),
        ],
        [(EXCHANGE, 20, 100, 20, exchange("recv", 1)), ("c", 120, 40, 7, {})],
    ]  # fmt: skip
    imported = job(tmp_path, ranks, skew=skew)
    assert (imported.report.coupled_collectives, imported.report.lone_collectives) == (2, 0)
    assert imported.report.clock_shift_us == (0.0, -skew, -2 * skew)
    assert spans(imported) == [50, 100, 140]
    ops = imported.graph.ops
    ops.recorded_ps[ops.name.tolist().index("a")] += 100_000_000
    assert spans(imported) == [150, 200, 240]


def test_a_send_that_ended_long_before_its_receive_stands_alone(tmp_path):
    # NCCL buffers what is small: the sender is done after 10, the receiver 190 later, for another reason.
    # The clocks are aligned by three all_reduces.
    both = [(REDUCE, at, 20, 21, group("[0, 1]")) for at in (400, 500, 600)]
    ranks = [
        [("a", 20, 80, 7, {}), (EXCHANGE, 100, 10, 20, exchange("send", 1)), *both],
        [("b", 20, 85, 7, {}), (EXCHANGE, 105, 195, 20, exchange("recv", 0)), *both],
    ]
    imported = job(tmp_path, ranks)
    assert (imported.report.coupled_collectives, imported.report.lone_collectives) == (3, 2)
    assert spans(imported) == [600, 600]


def test_recordings_that_begin_at_different_calls(tmp_path):
    # The first of four all_reduces is not in the trace of rank 1; gaps between them differ, so that only one
    # shift lets the calls end together.  Rank 1 arrives 5 later each time.
    ends = (100, 150, 230, 270)
    ranks = [
        [(REDUCE, end - 20, 20, 20, group("[0, 1]")) for end in ends],
        [(REDUCE, end - 15, 15, 20, group("[0, 1]")) for end in ends[1:]],
    ]
    imported = job(tmp_path, ranks, skew=777.0)
    assert (imported.report.coupled_collectives, imported.report.lone_collectives) == (3, 1)
    assert imported.report.clock_shift_us == (0.0, -777.0)
    assert spans(imported) == [190, 135]


def test_files_name_the_ranks_that_traces_do_not(tmp_path):
    names = ["rank10.json", "trace-rank_2.pt.json", "Rank-0.json"]
    paths = [write(tmp_path / name, launched("a", 0, 8, 5, corr=1)) for name in names]
    assert [rank.number for rank in import_kineto(paths).ranks] == [0, 2, 10]
    paths.append(write(tmp_path / "other.json", launched("a", 0, 8, 5, corr=1)))
    assert [rank.number for rank in import_kineto(paths).ranks] == [0, 1, 2, 3]


def test_sequence_numbers_decide(tmp_path):
    # All alike and evenly spaced: only NCCL's numbers tell that rank 1 misses the first, not the last.
    ends = (100, 150, 200)
    ranks = [
        [(REDUCE, end - 20, 20, 20, group("[0, 1]", Seq=at)) for at, end in enumerate(ends, start=4)],
        [(REDUCE, end - 15, 15, 20, group("[0, 1]", Seq=at)) for at, end in enumerate(ends[1:], start=5)],
    ]
    imported = job(tmp_path, ranks, skew=777.0)
    assert imported.report.coupled_collectives == 2
    assert imported.report.clock_shift_us == (0.0, -777.0)


def test_streams_without_metadata_are_told_by_what_ends_together(tmp_path):
    # Ranks 0 and 2, 1 and 3 reduce; all meet in the last call, on another stream.
    def rank(ends, late):
        first = [(REDUCE, end - 20 + late, 20 - late, 20, {}) for end in ends]
        return [*first, ("ncclDevKernel_AllGather_RING_LL", 780, 20, 30, {})]

    ones, others = (100, 300, 500), (200, 350, 700)
    imported = job(tmp_path, [rank(ones, 0), rank(others, 0), rank(ones, 5), rank(others, 5)])
    assert imported.report.coupled_collectives == 3 + 3 + 1
    ops = imported.graph.ops
    members = {tuple(g.explicit[0]) for name, g in imported.graph.groups.items() if g.explicit}
    assert members == {(0, 2), (1, 3), (0, 1, 2, 3)}
    assert (ops.recorded_ps[ops.name.equals(REDUCE)] == 15_000_000).all()


def test_groups_whose_name_is_cut_short_are_told_apart(tmp_path):
    # Two groups called alike ("[0, ..., 3]"): their sequences differ.
    def of(kinds):
        names = {"r": REDUCE, "g": "ncclDevKernel_AllGather_RING_LL"}
        meta = {"r": "allreduce", "g": "_allgather_base"}
        return [
            (names[k], 100 * at, 20, 20, group("[0, ..., 3]", **{"Collective name": meta[k]}))
            for at, k in enumerate(kinds, start=1)
        ]

    imported = job(tmp_path, [of("rrg"), of("rg"), of("rrg"), of("rg")])
    assert (imported.report.coupled_collectives, imported.report.lone_collectives) == (5, 0)
    assert imported.report.refused_groups == ()


def test_clocks_that_run_at_different_speeds(tmp_path):
    # 20 s of an all_reduce each 200 ms; rank 1's clock gains 100 us a second: 2 ms in all.
    def rank(speed, late):
        return [(REDUCE, 200_000 * at * speed + late, 20 - late, 20, group("[0, 1]")) for at in range(1, 101)]

    imported = job(tmp_path, [rank(1.0, 0), rank(1.0001, 5)])
    assert imported.report.coupled_collectives == 100
    assert imported.report.refused_groups == ()
    transfers = imported.graph.ops.recorded_ps[imported.graph.ops.name.equals(REDUCE)]
    assert set(transfers.tolist()) == {15_000_000}
    # Both replay their recordings: 19.8 s between the first and the last, 1.98 ms more on the fast clock.
    spans_ms = [1e3 * row.replayed.span for row in replay_job(imported)]
    recorded_ms = [1e3 * row.recorded.span for row in replay_job(imported)]
    assert spans_ms == pytest.approx(recorded_ms, rel=2e-4)
