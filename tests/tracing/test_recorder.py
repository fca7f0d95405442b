"""What the recorder writes down about streams, collectives and storages of little programs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.graph.ops import OpKind
from tests.tracing import programs
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.record.recording import COLUMNS, Recording
from workloads.tracing.record.templates import cut


def values(recording: Recording, name: str) -> list[object]:
    return [op.columns[COLUMNS.index(name)] for op in recording.ops]


def test_streams_and_events_become_waits(pool: WorkerPool) -> None:
    found: Recording = pool.submit(programs.two_streams).result()
    streams = ["compute", "side.1", "compute", "compute", "", "side.1", "compute", "compute"]
    assert values(found, "stream") == streams
    # Op 6 reads what the side stream wrote and does not wait: the program has a race, the recording no wait.
    assert [op.waits for op in found.ops] == [(), (0,), (), (1,), (), (), (), ()]
    assert found.ops[6].data == (5,)
    kinds = values(found, "kind")
    assert kinds[4] == kinds[7] == OpKind.SYNC
    assert [index for index, value in enumerate(values(found, "blocking")) if value] == [4, 7]


def test_collectives(pool: WorkerPool) -> None:
    found: Recording = pool.submit(programs.collectives).result()
    assert values(found, "collective")[1:3] == ["all_reduce", "all_reduce"]
    assert values(found, "reduce_op")[1:3] == ["max", "sum"]
    assert values(found, "stream")[:4] == ["compute", "compute", "world", "compute"]
    assert found.ops[2].waits == (1,)  # the communicator's stream waits for the issuing one
    assert found.ops[3].waits == () and found.ops[4].waits == (2,)
    # nccl-tests' sizes: the whole output of all_gather, the whole input of reduce_scatter: 16 floats
    assert values(found, "collective")[5:8] == ["all_gather", "reduce_scatter", "broadcast"]
    assert values(found, "num_bytes")[5:8] == [64, 64, 16]
    assert values(found, "group")[5:8] == ["world", "world", "pair"]
    assert found.groups["pair"] == (1, 3) and "alone" not in found.groups
    # Rank 1 of 4 sends to 2: one further on; receives from 0: three further on.
    assert values(found, "kind")[8:11] == [OpKind.SEND, OpKind.SEND, OpKind.RECV]
    assert values(found, "peer_delta")[8:11] == [1, 1, 3]
    assert values(found, "stream")[8:11] == ["world.pair.1", "world", "world"]
    # A batch is one launch, and so are coalesced collectives; everything else stands alone.
    launches = [op.launch for op in found.ops]
    assert launches[9] == launches[10] != -1 and launches[11] == launches[12] != -1
    assert launches[9] != launches[11] and launches[:9] == [-1] * 9
    assert found.ops[13].waits == (8, 9, 10, 11, 12)  # the first op of the stream since those waits
    assert len(found.ops) == 14


def test_bytes_of_a_shared_buffer_are_kept_apart(pool: WorkerPool) -> None:
    found: Recording = pool.submit(programs.buckets).result()
    assert [op.data for op in found.ops] == [(), (0,), (0,), (1,), (2,), (3, 4)]
    assert found.ops[3].waits == (2,) and found.ops[5].waits == (3,)


def test_storages_live_as_long_as_something_uses_them(pool: WorkerPool) -> None:
    found: Recording = pool.submit(programs.lifetimes).result()
    assert [op.alloc_bytes for op in found.ops] == [1024, 1024, 64]
    assert [(free.after, free.num_bytes, free.owner) for free in found.frees] == [(1, 1024, 0), (2, 1024, 1)]
    program = cut(found)
    (template,) = program.templates.values()
    # 1024, 2048, then 1024 + 64; the last 64 stay.
    assert template.memory() == (64, 2048) and program.peak_memory() == 2048


spans = st.tuples(st.integers(0, 30), st.integers(1, 10)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(st.tuples(spans, st.booleans()), max_size=30))
def test_last_writer_of_every_byte(accesses: list[tuple[tuple[int, int], bool]]) -> None:
    """Against an array with one entry per byte."""
    from workloads.tracing.fake.storages import ByteWriters

    writers, plain = ByteWriters(), [-1] * 40
    for number, ((low, high), is_write) in enumerate(accesses):
        assert set(writers.overlapping(low, high)) == {w for w in plain[low:high] if w >= 0}
        if is_write:
            writers.write(low, high, number)
            plain[low:high] = [number] * (high - low)


def test_products_of_groups_count_their_flops(pool: WorkerPool) -> None:
    # 64 rows (columns, terms) are 64 x 32 x 16 multiplications and additions in all, whoever has them.
    found: Recording = pool.submit(programs.grouped_products).result()
    assert values(found, "name") == ["aten::_grouped_mm"] * 3
    assert values(found, "flops") == [2 * 64 * 32 * 16] * 3


def test_operators_below_autograd_are_their_kernels(pool: WorkerPool) -> None:
    found: Recording = pool.submit(programs.below_autograd).result()
    assert values(found, "name") == ["aten::ones", "aten::_to_copy", "aten::clone", "aten::mm"]
    assert values(found, "flops")[-1] == 2 * 8**3


def test_gathers_and_scatters_go_to_or_come_from_one_place(pool: WorkerPool) -> None:
    # NCCL groups sends and receives: an exchange whose pieces are one rank's, 16 bytes from (to) each.
    found: Recording = pool.submit(programs.one_place_has_all).result()
    assert values(found, "name")[1:] == ["nccl::gather", "nccl::scatter"]
    assert values(found, "collective")[1:] == ["all_to_all:to=0,1,0,0", "all_to_all:from=1,0,0,0"]
    assert values(found, "num_bytes")[1:] == [16, 16]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("splits", "all_to_all with 2 parts among 4 ranks"),
        ("gathered", "all_gather of 16 parts .* into 16 among 4 ranks"),
        ("reduced", "reduce_scatter of 16 parts .* into 16 among 4 ranks"),
        ("dealt", "scatter with 3 parts among 4 ranks"),
        ("typed", "all_gather from and to tensors of torch.float32, torch.bfloat16"),
        ("on the host", "all_reduce of a tensor of the host in a group of nccl alone"),
        ("listed", "all_gather of 1 parts .* into 2 among 4 ranks"),
        ("from nobody", "broadcast to or from rank 5 of a group of 4"),
        ("to nobody", "reduce to or from rank 5 of a group of 4"),
        ("sent to nobody", "send to or from rank 5 of a group of 4"),
    ],
)
def test_what_a_group_refuses_is_refused(pool: WorkerPool, what: str, said: str) -> None:
    assert re.fullmatch(said, pool.submit(programs.unfit, what).result())


def test_another_dimension_of_shards_is_an_exchange(pool: WorkerPool) -> None:
    # 8 x 3 floats of a rank, in four pieces of 2 x 3; they are joined once they have arrived.
    found: Recording = pool.submit(programs.another_dimension).result()
    assert values(found, "collective") == ["", "all_to_all", ""] and values(found, "num_bytes")[1] == 96
    assert values(found, "name")[2] == "aten::cat" and found.ops[2].waits == (1,)


def test_an_operator_that_communicates_in_a_way_of_its_own_is_refused(pool: WorkerPool) -> None:
    said = pool.submit(programs.in_a_way_of_its_own).result()
    assert said.startswith("of_my_own::sum_of_all communicates within a process group")


def test_nvml_answers_for_the_gpu_that_is_not_there(pool: WorkerPool, tmp_path: Path) -> None:
    assert pool.submit(programs.asks_nvml, str(tmp_path)).result() == ("NVIDIA H800", 80)
