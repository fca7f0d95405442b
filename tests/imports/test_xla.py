"""Thunk traces of XLA: coupled ranks, waits from the HLO module."""

import copy
import gzip
import json
import os
from pathlib import Path

import pytest

from simcore.apps.replay.play import play
from simcore.errors import InputError
from workloads.imports import import_traces
from workloads.imports.xla.hlo import HloModule

TRACE = (
    Path(os.environ.get("REAL_TRACES", "no-such-folder"))
    / "jax-toolbox-pax-fsdp4-a100/derived_pax_fsdp4.events_and_hlo.json.gz"
)


def instruction(name, opcode, operands=(), in_bytes=0, out_bytes=0, groups=()):
    return {
        "name": name, "opcode": opcode, "operands": list(operands), "control": [], "in_bytes": in_bytes,
        "out_bytes": out_bytes, "groups": [list(group) for group in groups],
    }  # fmt: skip


#: gather's result reaches "use" through a tuple element; scatter is wrapped in an async computation.
HLO = [
    {
        "computation": "async_computation",
        "entry": False,
        "instructions": [
            instruction("param", "parameter"),
            instruction("reduce-scatter.9", "reduce-scatter", ["param"], 800, 400, [(0, 1)]),
        ],
    },
    {
        "computation": "main",
        "entry": True,
        "instructions": [
            instruction("make", "fusion"),
            instruction("all-gather-start.1", "all-gather-start", ["make"], 100, 300, [(0, 1)]),
            instruction("beside", "fusion", ["make"]),
            instruction("all-gather-done.1", "all-gather-done", ["all-gather-start.1"], 300, 200),
            instruction("element", "get-tuple-element", ["all-gather-done.1"]),
            instruction("use", "fusion", ["element"]),
            instruction("reduce-scatter-start", "async-start", ["use"], 800, 1200),
            instruction("reduce-scatter-done", "async-done", ["reduce-scatter-start"], 1200, 400),
            instruction("last", "fusion", ["reduce-scatter-done"]),
        ],
    },
]


def thunk(op, cs, gs, ge):
    """Launched from ``cs`` on for 1 us, on the GPU from ``gs`` to ``ge``, us."""
    return {"op": op, "cs": cs, "ce": cs + 1, "gs": gs, "ge": ge, "n": 1}


def step(shift, make):
    """One step; the first kernel ends at ``make`` us.  Rank 1 is later, so its collectives wait for nobody.

    The gather takes 10 us from 41 us on, when the later rank comes; what needs it starts 1 us later.  The
    scatter takes 20 us from 63 us on.
    """
    thunks = [
        thunk("make", 0, 10, make), thunk("all-gather-start.1", 2, make + 1, 51),
        thunk("beside", 4, make + 1, make + 9), thunk("use", 6, 52, 62), thunk("reduce-scatter.9", 8, 63, 83),
        thunk("last", 10, 84, 90),
    ]  # fmt: skip
    for entry in thunks:
        for key in ("cs", "ce", "gs", "ge"):
            entry[key] += shift
    return {"module_cpu_start_us": shift, "module_cpu_dur_us": 20, "thunks": thunks}


def trace():
    """Two ranks, two steps 1 ms apart; rank 1's clock shows 5000 us more."""
    return {
        "module": "step",
        "ranks": {
            "rank0": [step(100.0, 20), step(1100.0, 20)],
            "rank1": [step(5100.0, 40), step(6100.0, 40)],
        },
        "hlo": HLO,
    }


def write(path, content):
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def test_coupled_ranks_come_back(tmp_path):
    job = import_traces([write(tmp_path / "trace.json.gz", trace())])
    report = job.report
    assert (report.format, report.world_size) == ("xla", 2)
    assert (report.coupled_collectives, report.lone_collectives, report.refused_groups) == (4, 0, ())
    assert report.clock_shift_us == (0.0, -5000.0)
    rows = play(job).steps()
    assert [(row.rank, row.step) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for row in rows:
        assert 1e6 * row.replayed.span == pytest.approx(80, abs=1e-3)  # 10 to 90 us
        assert row.replayed.parts() == pytest.approx(row.recorded.parts(), abs=2e-9)
    # Rank 0: 10 + 8 + 10 + 6 us of computes; the gather from 21 on, 8 us of it beside a compute.
    assert 1e6 * rows[0].replayed.overlapped == pytest.approx(8, abs=1e-3)
    assert 1e6 * rows[0].replayed.exposed_communication == pytest.approx(22 + 20, abs=1e-3)


def test_the_waiting_comes_from_the_run(tmp_path):
    """Rank 1's first kernel 7 us longer: both ranks' gathers, and all that needs them, end 7 us later."""
    job = import_traces([write(tmp_path / "trace.json.gz", trace())])
    ops = job.graph.ops
    first = next(row for row in job.graph.template_rows(1) if ops.name[row] == "make")
    ops.recorded_ps[first] += 7_000_000
    spans = {(row.rank, row.step): 1e6 * row.replayed.span for row in play(job).steps()}
    assert spans[0, 0] == pytest.approx(87, abs=1e-3)
    assert spans[1, 0] == pytest.approx(87, abs=1e-3)
    assert spans[0, 1] == pytest.approx(80, abs=1e-3)


def test_sizes_and_kinds(tmp_path):
    """nccl-tests' sizes: what a gather gives (the result of its done), what a scatter takes."""
    job = import_traces([write(tmp_path / "trace.json.gz", trace())])
    ops = job.graph.ops
    found = {
        ops.name[row]: (ops.collective[row], int(ops.num_bytes[row]))
        for row in job.graph.template_rows(0)
        if ops.collective[row]
    }
    assert found == {"all-gather-start.1": ("all_gather", 200), "reduce-scatter.9": ("reduce_scatter", 800)}


def test_the_module_says_what_a_kernel_moves_and_calls(tmp_path):
    content = trace()
    beside = next(one for one in content["hlo"][1]["instructions"] if one["name"] == "beside")
    beside |= {"opcode": "custom-call", "target": "__cublas$gemm", "in_bytes": 600, "out_bytes": 400}
    recorded = import_traces([write(tmp_path / "trace.json.gz", content)]).ranks[0].recorded
    found = {recorded.name[op]: recorded.moved(op) for op in range(len(recorded))}
    assert found["__cublas$gemm beside"] == (600, 400)
    assert found["make"] == (0, 0)


def test_without_a_module_names_tell(tmp_path):
    content = trace()
    del content["hlo"]
    job = import_traces([write(tmp_path / "trace.json.gz", content)])
    assert job.report.coupled_collectives == 4
    assert max(abs(row.error) for row in play(job).steps()) < 0.02


def broken(change):
    content = copy.deepcopy(trace())
    change(content)
    return content


def test_thunks_of_a_command_buffer_have_no_launch_of_their_own(tmp_path):
    content = trace()
    for steps in content["ranks"].values():
        for number, entry in enumerate(steps):
            for done in entry["thunks"][1:]:
                del done["cs"], done["ce"]
            # The first step's launch ends only when the second has begun.
            entry["thunks"][0]["ce"] += 999.5 * (number == 0)
    job = import_traces([write(tmp_path / "trace.json.gz", content)])
    assert job.report.coupled_collectives == 4
    for row in play(job).steps():
        assert 1e6 * row.replayed.span == pytest.approx(80, abs=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["ranks"]["rank1"][1]["thunks"][2].update(ge=0), "rank1: step 1: thunk 2 .beside.: ends"),
        (lambda c: c["ranks"]["rank0"][0]["thunks"][0].update(gs="x"), "rank0: step 0: thunk 0: gs is 'x'"),
        (lambda c: c["ranks"]["rank0"][0]["thunks"][0].update(ge=1e12), "step 0: thunk 0 .make.: 11.6 days"),
        (lambda c: c["ranks"]["rank0"][0]["thunks"][0].pop("op"), "thunk 0: has no op"),
        (lambda c: c["ranks"]["rank0"].clear(), "rank0: has no steps"),
        (lambda c: c["ranks"].update(other1=[]), "'other1' and 'rank1' are both of rank 1"),
        (lambda c: c["ranks"]["rank0"].reverse(), "rank0: step 1: begins before step 0"),
        (lambda c: c["hlo"][1].pop("instructions"), r"hlo\[1\]: has no list of instructions"),
        (
            lambda c: c["hlo"][1]["instructions"][0].update(in_bytes="big"),
            " has in_bytes 'big', no whole number",
        ),
    ],
)
def test_bad_traces(tmp_path, change, message):
    with pytest.raises(InputError, match=message) as caught:
        import_traces([write(tmp_path / "trace.json.gz", broken(change))])
    assert "trace.json.gz" in str(caught.value)


@pytest.mark.parametrize("gaps", ["recorded", "typical"])
def test_a_recorded_job(gaps):
    if not TRACE.is_file():
        pytest.skip("the recorded job is not at hand")
    job = import_traces([TRACE], gaps=gaps)
    assert job.report.coupled_collectives == 5 * 23
    assert job.report.lone_collectives == 0
    rows = play(job).steps()
    assert len(rows) == 20
    for row in rows:
        assert abs(row.error) <= 0.015
        for part, time in row.recorded.parts().items():
            assert abs(row.replayed.parts()[part] - time) <= 0.03 * row.recorded.span


def waiting_steps(early=()):
    """Steps of 3 ms: "slow" runs for 1 ms, "custom" is launched 12 us after its end; "next" behind it.

    In steps of ``early`` custom is launched while slow still runs, so nobody can have waited.
    """
    steps = []
    for number in range(5):
        call = 20 if number in early else 1022
        thunks = [
            thunk("slow", 0, 10, 1010),
            thunk("custom", call, 1030, 1050),
            thunk("next", 1030, 1060, 1070),
        ]
        for entry in thunks:
            for key in ("cs", "ce", "gs", "ge"):
                entry[key] += 3000.0 * number
        steps.append({"module_cpu_start_us": 3000.0 * number, "module_cpu_dur_us": 1100, "thunks": thunks})
    return {"module": "step", "ranks": {"rank0": steps}, "hlo": []}


def shortened(job, name, to_us):
    ops = job.graph.ops
    rows = [row for row, op in enumerate(ops.name.tolist()) if op == name]
    ops.recorded_ps[rows] = int(to_us * 1e6)
    return [1e6 * row.replayed.span for row in play(job).steps()]


def test_a_gap_that_ends_with_the_gpu_is_a_wait_for_it(tmp_path):
    job = import_traces([write(tmp_path / "trace.json.gz", waiting_steps())])
    assert "5 gaps of the host that end as a GPU op does" in " ".join(job.report.doubts())
    assert [1e6 * row.replayed.span for row in play(job).steps()] == pytest.approx([1060] * 5, abs=1e-3)
    # Slow takes 100 us, so custom and all behind it come 900 us earlier: 10 to 170.
    assert shortened(job, "slow", 100) == pytest.approx([160] * 5, abs=1e-3)


def test_an_instruction_once_launched_beside_the_gpu_waits_for_nothing(tmp_path):
    job = import_traces([write(tmp_path / "trace.json.gz", waiting_steps(early=(1,)))])
    assert not any("gaps of the host" in doubt for doubt in job.report.doubts())
    # The host's time stays: custom is launched as late as recorded, at 1022, and starts 8 us later.
    assert shortened(job, "slow", 100)[0] == pytest.approx(1060, abs=1e-3)


@pytest.mark.parametrize(
    "name", ["reduce-scatter.57.double_buffer_clone.1", "all-gather-start.peeled_double_buffer", "all-reduce"]
)
def test_copies_of_a_collective_are_collectives(name):
    # As XLA's passes name them (MaxText on H100); without a module the name has to tell.
    found = HloModule("trace", []).collective(name, frozenset([name]))
    assert found is not None
    assert found.num_bytes == -1


def test_a_fusion_around_a_collective_computes():
    assert HloModule("trace", []).collective("all-reduce_fusion.3", frozenset()) is None
