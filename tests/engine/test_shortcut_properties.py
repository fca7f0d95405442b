"""Generated pipelines with every shortcut and without: times equal to the picosecond, counters to the bit."""

from __future__ import annotations

from collections import Counter

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from simcore.engine.shortcuts import solo
from simcore.engine.shortcuts.late import LateChains
from simcore.graph import Graph, GraphBuilder, external
from simcore.graph.schedules import one_f_one_b
from simcore.hardware import load_cluster
from tests.engine.digests import SETTINGS, differences
from tests.engine.lab import C, K, TableCost, cluster, run, single
from tests.engine.test_properties import KERNELS
from tests.engine.twelve_jobs import TWO_NODES, Job

MB = 1_000_000
STAGES = 2

#: Tensor-parallel groups over the NICs that messages between stages take.
EIGHT_NODES = {"cluster.num_nodes": "8", "cluster.gpus_per_node": "1", "cluster.nics_per_node": "1"}

#: What the last stage has beside layers, so that others wait for it: stages alike would not settle soon.
HEAD = [(("static", 0, "compute"), [])] * 3

kernel = st.tuples(st.sampled_from(sorted(KERNELS)), st.just(0), st.sampled_from(["compute"] * 4 + ["side"]))
collective = st.tuples(
    st.sampled_from(["all_reduce", "all_gather", "ring"]),
    st.sampled_from([1, 30]),
    st.sampled_from(["compute", "tp"]),
)
waits = st.lists(st.sampled_from(["compute", "side", "tp"]), max_size=1)
layer = st.lists(st.tuples(st.one_of(kernel, collective), waits), min_size=3, max_size=8)
#: The same, in which the host waits for what it has launched.
waiting = st.tuples(layer, st.integers(0, 8)).map(lambda drawn: with_sync(*drawn))
#: Which microbatches are shorter than the others: none of many, which repeat, or some of a few.
shorter = st.one_of(st.just([False] * 20), st.lists(st.booleans(), min_size=9, max_size=9))


def with_sync(ops, place: int):
    """``ops`` with a host that waits for the compute stream before one of them."""
    return [*ops[:place], (("sync", 0, "compute"), []), *ops[place:]]


def write(template, ops, receive_from: int, send_to: int, message_mb: int, after: int) -> None:
    """``ops`` between a message that is awaited and one that is sent, each to the stage at a distance.

    ``after``: so many of them come after the message that is sent, which waits for the compute stream only.
    """
    received = ()
    if receive_from:  # nobody receives ahead of the work before, so that a pipeline settles soon
        posted = {"stream": "recv", "waits": (external("compute"),)}
        received = (template.recv("pp", receive_from, message_mb * MB, **posted),)
    last = {"compute": template.compute("tiny", waits=received)}
    for number, ((name, num_mb, stream), awaited) in enumerate(ops):
        if send_to and after and number == max(0, len(ops) - after):
            template.send("pp", send_to, message_mb * MB, stream="send", waits=(last["compute"],))
        handles = [last[other] for other in awaited if other in last and other != stream]
        if name == "sync":
            template.sync(stream)
        elif name == "ring":
            one = {"stream": stream, "waits": handles, "batch": len(template)}
            template.send("tp", 1, num_mb * MB, **one)
            last[stream] = template.recv("tp", -1, num_mb * MB, **one)
        elif num_mb:
            last[stream] = template.collective(name, "tp", num_mb * MB, stream=stream, waits=handles)
        else:
            last[stream] = template.compute(name, stream=stream, waits=handles)
    done = template.compute("tiny", waits=[handle for stream, handle in last.items() if stream != "compute"])
    if send_to and not after:
        template.send("pp", send_to, message_mb * MB, stream="send", waits=(done,))


def pipeline(forward, backward, layers: int, short, tp: int, dp: int, message_mb: int, after: int) -> Graph:
    """1F1B on two stages.  ``forward``, ``backward``: a layer's ops; short microbatches have one layer, all
    send before the last ``after`` ops.
    """
    build = GraphBuilder(STAGES * tp * dp, name="pipeline")
    build.group("tp", ((tp, 1),))
    build.group("dp", ((dp, tp),))
    build.group("pp", ((STAGES, tp * dp),))
    for stage, actions in enumerate(one_f_one_b(STAGES, len(short))):
        up, down = (1, 0) if stage == 0 else (0, -1)
        templates = {}
        for action in actions:
            key = action.kind, short[action.microbatch]
            if key not in templates:
                is_forward, repeats = action.kind == "F", 1 if key[1] else layers
                template = templates[key] = build.template("fwd" if is_forward else "bwd")
                ops, ends = (forward, (down, up)) if is_forward else (backward, (up, down))
                head = HEAD if is_forward and not up else []
                write(template, ops * repeats + head, *ends, message_mb, after)
        step = build.template("optimizer")
        reduced = step.collective("all_reduce", "dp", 40 * MB, stream="side", waits=(external("compute"),))
        step.compute("memory", waits=(reduced,))
        begin = build.template("begin")
        begin.compute("tiny")
        skeleton = [(templates[a.kind, short[a.microbatch]], a.microbatch, 0) for a in actions]
        build.program(
            range(stage * tp * dp, (stage + 1) * tp * dp),
            [(begin, -1, 0), *skeleton, (step, -1, 0)],
            stage=stage,
        )
    return build.build()


def compared(layers, launches) -> Counter[str]:
    """Thirty jobs of such layers, by default and with another setting: how many there were, and how many of
    them a shortcut answered for.
    """
    seen: Counter[str] = Counter()

    @settings(max_examples=30, phases=[Phase.generate])  # to shrink one that fails would take minutes
    @given(
        layers, layers, st.integers(2, 4), shorter, st.sampled_from([(2, 1), (2, 2), (4, 1)]),
        st.sampled_from([2, 30]), st.integers(0, 2), st.sampled_from(launches),
        st.sampled_from(SETTINGS[1:]), st.sampled_from(["h100-8", "a100-8"]),
        st.sampled_from([TWO_NODES, EIGHT_NODES]),
    )  # fmt: skip
    def play(forward, backward, layers, short, degrees, message_mb, after, launch, setting, cluster, nodes):
        graph = pipeline(forward, backward, layers, short, *degrees, message_mb, after)
        hardware = {**nodes, "gpu.launch_overhead_s": launch}
        job = Job(graph, load_cluster(cluster, hardware), cost=TableCost(KERNELS))
        ours, default = job.play(**setting).result, job.play().result
        assert not differences(ours, default, setting), setting
        answered = {name for name in ("cells", "steady") if getattr(default.answered, name)}
        seen.update(["jobs", *answered])

    play()
    return seen


def test_shortcuts_change_nothing(monkeypatch):
    monkeypatch.setattr(solo, "WORTH_OPS", 0)
    seen = compared(layer, ["0us", "4us", "60us"])
    assert seen["cells"] >= seen["jobs"] / 3
    assert seen["steady"]


def test_hosts_that_wait_for_their_gpus(monkeypatch):
    monkeypatch.setattr(solo, "WORTH_OPS", 0)
    late = []
    times = LateChains.times

    def noted(self, *asked):
        found = times(self, *asked)
        late.append(found)
        return found

    monkeypatch.setattr(LateChains, "times", noted)
    compared(waiting, ["4us", "20us", "60us"])
    found = [one for one in late if one is not None]
    assert len(found) > len(late) / 2
    assert len(set(found)) < len(found) / 2


def test_a_window_of_launches_that_parts_kernels():
    # "full" on the side stream is in a run of kernels that began before that of the compute stream, so it
    # takes SMs first.  The host looks whether its queue has room once per 256 launches; a run ends there.  In
    # one microbatch that is between "start" and "full", which then comes after all of the compute stream's.
    build = single()
    begin, microbatch = build.template("begin"), build.template("fwd")
    for _ in range(4):
        begin.compute("start")
    started = microbatch.compute("start")
    microbatch.compute("start", stream="side", waits=(started,))
    side = microbatch.compute("full", stream="side")
    microbatch.compute("full")
    microbatch.compute("full")
    microbatch.compute("start", waits=(side,))
    build.program([0], [(begin, -1, 0), *[(microbatch, number, 0) for number in range(140)]])
    run(build.build(), {"start": K(fixed_us=10), "full": K(100, blocks=132)})


def test_a_collective_that_waits_for_sms_at_the_instant_at_which_a_kernel_ends():
    # "half" is launched at 0 and ends at 100 us, "long" holds 66 of 132 SMs from 50 us on, and at 100 us a
    # collective, which is looked at first, asks for 100.
    build = single()
    template = build.template("fwd")
    template.compute("half")
    template.compute("long", stream="side")
    template.collective("all_reduce", "self", 1, stream="comm")
    build.program([0], [(template, 0, 0)])
    kernels = {"half": K(100, blocks=66), "long": K(200, blocks=66)}
    result = run(build.build(), kernels, {1: C(us=5, channels=100)}, topology=cluster(launch_us=50))
    assert result.times[0].end_ps.tolist() == [100_000_000, 250_000_000, 255_000_000]
