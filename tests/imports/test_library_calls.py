"""Sizes of communication kernels by annotations around their launches (PyTorch before 2.2); times in us."""

import pytest

from tests.imports.traces import framework_call, launched, write
from workloads.imports import import_traces

SEND_RECV, ALL_REDUCE = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "ncclKernel_AllReduce_RING_LL_Sum_float"


def annotated(name, ts, shapes, types):
    event = framework_call(name, ts, 6)
    return event | {"cat": "user_annotation", "args": {"Input Dims": shapes, "Input type": types}}


def told(tmp_path, *calls):
    """Collective and bytes of kernels, given as (name, annotation, shapes, types), one after the other."""
    events = []
    for number, (kernel, *annotation) in enumerate(calls):
        at = 100 * number
        events += [annotated(annotation[0], at, *annotation[1:])] if annotation else []
        events += launched(kernel, at + 2, at + 20, 30, corr=number + 1, stream=20)
    path = write(tmp_path / "t.json", events, distributedInfo={"rank": 0, "world_size": 8})
    known = import_traces([path]).ranks[0].recorded.collectives
    return list(zip(known.collective.tolist(), known.num_bytes.tolist(), strict=True))


def test_annotations_tell_what_a_kernel_sends(tmp_path):
    assert told(
        tmp_path,
        (SEND_RECV, "nccl:all_to_all", [[8, 1024, 8816]], ["float"]),
        (ALL_REDUCE, "nccl:all_reduce", [[1000], [24]], ["c10::BFloat16", "c10::BFloat16"]),
        (SEND_RECV, "nccl:all_to_all", [[1002]], ["long int"]),
    ) == [("all_to_all", 4 * 8 * 1024 * 8816), ("all_reduce", 2 * 1024), ("all_to_all", 8 * 1002)]


@pytest.mark.parametrize(
    "kernel, annotation",
    [
        (SEND_RECV, ("nccl:coalesced", [[64]], ["float"])),  # of several calls the last
        (ALL_REDUCE, ("nccl:all_gather", [[64]], ["float"])),  # not this kernel
        (ALL_REDUCE, ("nccl:all_reduce", [[64], [8]], ["float", "int"])),  # what of it is sent?
        (SEND_RECV, ("nccl:all_to_all", [[]], ["TensorList"])),
        (SEND_RECV, ()),
    ],
)
def test_what_annotations_do_not_tell_stays_unknown(tmp_path, kernel, annotation):
    kind = "send_recv" if kernel == SEND_RECV else "all_reduce"
    assert told(tmp_path, (kernel, *annotation)) == [(kind, 0)]


def test_an_all_gather_of_an_unknown_group_has_no_size(tmp_path):
    name = "ncclKernel_AllGather_RING_LL_Sum_int8_t"
    assert told(tmp_path, (name, "nccl:_all_gather_base", [[64]], ["float"])) == [("all_gather", 0)]


def test_the_kernels_own_word_counts_more(tmp_path):
    own = {"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float"}
    events = [
        annotated("nccl:all_reduce", 0, [[1000]], ["float"]),
        *launched(ALL_REDUCE, 2, 20, 30, corr=1, stream=20, **own),
    ]
    path = write(tmp_path / "t.json", events, distributedInfo={"rank": 0, "world_size": 8})
    assert import_traces([path]).ranks[0].recorded.collectives.num_bytes.tolist() == [32]


def test_ranks_of_an_uneven_exchange_still_meet(tmp_path):
    # Rank 0 sends 64 bytes, rank 1 32: each says so, and it is one call of 64.
    for rank, elements in enumerate((16, 8)):
        events = [
            annotated("nccl:all_to_all", 0, [[elements]], ["float"]),
            *launched(SEND_RECV, 2, 20, 30, corr=1, stream=20),
        ]
        write(tmp_path / f"r{rank}.json", events, distributedInfo={"rank": rank, "world_size": 2})
    job = import_traces([tmp_path])
    assert (job.report.coupled_collectives, job.report.lone_collectives) == (1, 0)
    ops = job.graph.ops
    assert [size for size in ops.num_bytes.tolist() if size] == [64, 64]
