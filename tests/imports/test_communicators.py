"""Which calls of several ranks are one collective, whatever the traces say of groups; times in us."""

import pytest

from simcore.apps.replay.play import play
from tests.imports.traces import framework_call, launched, write
from workloads.imports import import_traces

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
    return import_traces(paths)


def spans(imported):
    return [round(row.replayed.span * 1e6, 3) for row in play(imported).steps()]


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
    paths = [write(tmp_path / name, launched("a", 0, 8, 5 + at, corr=1)) for at, name in enumerate(names)]
    assert [rank.number for rank in import_traces(paths).ranks] == [0, 2, 10]
    paths.append(write(tmp_path / "other.json", launched("a", 0, 8, 9, corr=1)))
    assert [rank.number for rank in import_traces(paths).ranks] == [0, 1, 2, 3]


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
    # 15 us of the fast clock are 14.9985 of the first's.
    assert 14_998_000 <= transfers.min() <= transfers.max() <= 15_000_000
    # Both replay their recordings: 19.8 s between the first and the last, 1.98 ms more on the fast clock.
    spans_ms = [1e3 * row.replayed.span for row in play(imported).steps()]
    recorded_ms = [1e3 * row.recorded.span for row in play(imported).steps()]
    assert spans_ms == pytest.approx(recorded_ms, rel=2e-4)


def issued(what, peer, at):
    """A send or receive inside a batch, as the host notes it."""
    towards = "Dst Rank" if what == "send" else "Src Rank"
    noted = {"Collective name": what, towards: peer, "Process Group Name": "1"}
    return framework_call("record_param_comms", at, 0.1) | {"args": noted}


def batches(folder, ranks, world_size=3):
    """Traces of ranks given as (start, length, [(what, peer), ...]) of batches, or (start, length, None)."""
    paths = []
    batch = group("[0, 1, 2]", **{"Collective name": "coalesced"})
    for rank, ops in enumerate(ranks):
        events = []
        for corr, (start, length, messages) in enumerate(ops, start=1):
            called = 10.0 * corr
            events += [issued(*message, called - 5 + i) for i, message in enumerate(messages or ())]
            name, args = ("k", {}) if messages is None else (EXCHANGE, batch)
            events += launched(name, called, start, length, corr=corr, **args)
        dist = {"rank": rank, "world_size": world_size}
        paths.append(write(folder / f"r{rank}.json", events, distributedInfo=dist))
    return import_traces(paths)


def test_a_batch_of_a_send_and_a_receive_meets_its_peers(tmp_path):
    # 0 and 1 exchange at 100, when 0 is ready, until 110; then 1 and 2 from 140, when 1 is ready, until 150.
    imported = batches(tmp_path, [
        [(50, 50, None), (100, 10, [("send", 1), ("recv", 1)])],
        [
            (50, 20, None), (70, 40, [("recv", 0), ("send", 0)]), (110, 30, None),
            (140, 10, [("send", 2), ("recv", 2)]),
        ],
        [(50, 10, None), (60, 90, [("recv", 1), ("send", 1)])],
    ])  # fmt: skip
    assert (imported.report.coupled_collectives, imported.report.lone_collectives) == (2, 0)
    assert spans(imported) == [60, 100, 100]
    ops = imported.graph.ops
    ops.recorded_ps[int(imported.ranks[0].flat[0])] += 100_000_000  # rank 0's first kernel: all wait for it
    assert spans(imported) == [160, 200, 200]


def test_a_ring_of_batches_is_one_call(tmp_path):
    # Each sends to the next and receives from the one before; rank r is ready at 60 + 10 r, all end at 100.
    ranks = [
        [(50, 10 + 10 * r, None), (60 + 10 * r, 40 - 10 * r, [("send", (r + 1) % 3), ("recv", (r - 1) % 3)])]
        for r in range(3)
    ]
    imported = batches(tmp_path, ranks)
    assert (imported.report.coupled_collectives, imported.report.lone_collectives) == (1, 0)
    first = int(imported.graph.template_start[1] + imported.ranks[1].flat[0])
    imported.graph.ops.recorded_ps[first] += 100_000_000
    # Rank 1 is ready at 170; the exchange takes 20, as rank 2 recorded.
    assert spans(imported) == [140, 140, 140]


def test_a_batch_with_a_peer_that_was_not_recorded_lasts_as_recorded(tmp_path):
    # Rank 1 waits for rank 2 until 900; the three exchanges after that tell the clocks.
    both = [(at, 10, [("send", 1), ("recv", 1)]) for at in (1000, 1100, 1200)]
    back = [(at, 10, [("send", 0), ("recv", 0)]) for at in (1000, 1100, 1200)]
    ranks = [
        [(50, 50, None), (100, 10, [("send", 1), ("recv", 1)]), *both],
        [(50, 20, None), (70, 830, [("recv", 0), ("send", 0), ("send", 2)]), *back],
    ]
    imported = batches(tmp_path, ranks)
    assert (imported.report.coupled_collectives, imported.report.lone_collectives) == (3, 2)
    assert spans(imported) == [1160, 1160]
