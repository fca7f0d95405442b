"""Profiles of XLA; times in us."""

import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.apps.replay.play import play
from workloads.imports import import_traces
from workloads.imports.kineto.xplane import _messages

PS = 10**6
BEGIN_NS = 1_700_000_000_000_000_000  # of lines, on the clock of the profile


class Plane:
    """A plane under construction."""

    def __init__(self, space, name, **stats):
        self.plane = space.planes.add(name=name)
        self._texts, self._events = {}, {}
        self._stats(self.plane.stats, stats)

    def _stats(self, stats, told):
        for name, value in told.items():
            stat = stats.add(metadata_id=self._text(name))
            if isinstance(value, str):
                stat.ref_value = self._text(value)
            else:
                stat.uint64_value = value

    def _text(self, name):
        if name not in self._texts:
            self._texts[name] = number = len(self._texts) + 1
            self.plane.stat_metadata.add(key=number).value.name = name
        return self._texts[name]

    def line(self, number, name, events):
        line = self.plane.lines.add(id=number, name=name, timestamp_ns=BEGIN_NS)
        for called, start, length, told in events:
            if called not in self._events:
                self._events[called] = code = len(self._events) + 1
                self.plane.event_metadata.add(key=code).value.name = called
            event = line.events.add(
                metadata_id=self._events[called], offset_ps=round(start * PS), duration_ps=round(length * PS)
            )
            self._stats(event.stats, told)


def profile(path, devices=1):
    """On each device a product of 40 from 20, a copy of 10 from 60.25, launched in one of two steps."""
    space = _messages()["Space"]()
    launches, steps = [], [("train", 0, 55, {"step_num": 7}), ("train", 55, 100, {"step_num": 8})]
    for device in range(devices):
        first = 10 * device + 1
        gpu = Plane(space, f"/device:GPU:{device}", core_count=108)
        details = "regs:32 static_shared:0 dynamic_shared:0 grid:216,1,1 block:256,1,1 occ_pct:100"
        gpu.line(
            13,
            "Stream #13(Compute)",
            [("gemm", 20, 40, {"correlation_id": first, "kernel_details": details})],
        )
        gpu.line(14, "Stream #14(MemcpyD2H)", [
            ("CopyDeviceToHost", 60.25, 10, {"correlation_id": first + 1, "memcpy_details": "size:8"})
        ])  # fmt: skip
        gpu.line(99, "XLA Ops", [("fusion", 20, 40, {})])
        launches += [
            ("cuLaunchKernel", 10 + device, 3, {"correlation_id": first}),
            ("cuMemcpyDtoHAsync", 56 + device, 3, {"correlation_id": first + 1}),
        ]
    host = Plane(space, "/host:CPU")
    host.line(1, "python", steps)
    host.line(2, "worker", sorted(launches, key=lambda event: event[1]))
    path.write_bytes(space.SerializeToString())
    return path


def test_kernels_copies_launches_and_steps(tmp_path):
    job = import_traces([profile(tmp_path / "host.xplane.pb", devices=2)])
    assert [rank.num_sms for rank in job.ranks] == [108, 108]
    rows = play(job).steps()
    assert [(row.rank, row.step) for row in rows] == [(0, 7), (0, 8), (1, 7), (1, 8)]
    for row in rows:
        assert row.recorded.span == pytest.approx(40e-6 if row.step == 7 else 10e-6, abs=1e-12)
        assert row.recorded.exposed_compute == pytest.approx(40e-6 if row.step == 7 else 0, abs=1e-12)
        assert row.replayed == row.recorded
    recorded = job.ranks[0].recorded
    assert (recorded.start_ps[1] - recorded.start_ps[0]) == 40_250_000
    assert recorded.blocks.tolist() == [216, 0]
    assert job.report.format == "xplane"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x0a\x05abcde", "no profile of XLA, or truncated"),
        (b"\x12\x02ab", "has no planes"),
        (None, "no kernels on streams of a GPU (no GPU): nothing to replay"),
    ],
)
def test_what_is_no_profile_of_a_gpu_is_refused(tmp_path, content, reason):
    path = tmp_path / "host.xplane.pb"
    if content is None:
        profile(path, devices=0)
    else:
        path.write_bytes(content)
    found = CliRunner().invoke(app, ["replay", str(path)])
    assert (found.exit_code, reason in " ".join(found.output.split())) == (2, True), found.output
