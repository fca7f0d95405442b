"""Graphs that several tests share, and hypothesis strategies that make any."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from simcore.graph import Graph, GraphBuilder, MemoryProfile, external
from simcore.graph.template_builder import OpHandle, TemplateBuilder

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
STREAMS = ("compute", "tp", "side")
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)


def two_stages() -> Graph:
    """Two ranks, two microbatches: rank 0 computes and sends, rank 1 receives and computes."""
    build = GraphBuilder(2, name="two stages", dims={"pp": 2}, num_microbatches=2)
    build.group("pp", dims=((2, 1),))
    head, tail = build.template("fwd"), build.template("fwd")
    gemm = head.compute("gemm", recorded_ps=1_000, op_class="gemm", flops=8, alloc_bytes=64)
    head.send("pp", +1, 4096, waits=(gemm,))
    got = tail.recv("pp", -1, 4096)
    tail.compute("gemm", waits=(got,), data=(got,), recorded_ps=2_000)
    tail.sync()
    build.program([0], [(head, 0, 0), (head, 1, 0)], stage=0, memory=MemoryProfile(parameters=10, peak=74))
    build.program([1], [(tail, 0, 0), (tail, 1, 0)], stage=1, layer_offset=(4,))
    return build.build()


def data_parallel(*, size: int = 4, num_bytes: int = 1 << 20) -> Graph:
    """``size`` ranks with one program: backward, all_reduce on a stream of its own, optimizer."""
    build = GraphBuilder(size, name="data parallel", dims={"dp": size})
    build.group("dp", dims=((size, 1),))
    backward, step = build.template("bwd"), build.template("optimizer")
    gradient = backward.compute("wgrad", recorded_ps=500)
    backward.collective("all_reduce", "dp", num_bytes, waits=(gradient,))
    backward.compute("dgrad", recorded_ps=700)
    step.compute("adam", waits=(external("dp"),), recorded_ps=300)
    build.program(range(size), [(backward, 0, 0), (step, -1, 0)])
    return build.build()


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Structurally valid graphs of any content; ranks need not agree with each other."""
    world = draw(st.integers(1, 6))
    build = GraphBuilder(world, name=draw(TEXTS), model={"layers": draw(st.integers(0, 9))})
    if draw(st.booleans()):
        build.group("all", explicit=[tuple(range(world))])
    else:
        build.group("all", dims=((world, 1),))
    templates = [draw(_template(build)) for _ in range(draw(st.integers(1, 4)))]
    for rank in range(world):
        skeleton = draw(st.lists(st.sampled_from(templates), max_size=5))
        played = [(template, draw(st.integers(-1, 3)), 0) for template in skeleton]
        build.program([rank], played, stage=draw(st.integers(0, 3)), name=draw(TEXTS))
    return build.build()


@st.composite
def _template(draw: st.DrawFn, build: GraphBuilder) -> TemplateBuilder:
    template = build.template(draw(st.sampled_from(("fwd", "bwd", "optimizer", "exchange"))))
    handles: list[OpHandle] = []
    for _ in range(draw(st.integers(0, 6))):
        waits = draw(st.lists(st.sampled_from(handles), max_size=2)) if handles else []
        data = draw(st.lists(st.sampled_from(handles), max_size=2)) if handles else []
        stream = draw(st.sampled_from(STREAMS))
        if draw(st.booleans()):
            columns = {
                "module": draw(TEXTS),
                "layer": draw(st.integers(-1, 5)),
                "flops": draw(st.integers(0, 2**60)),
                "alloc_bytes": draw(st.integers(0, 2**40)),
                "recorded_ps": draw(st.integers(-1, 2**50)),
            }
            handles.append(template.compute(draw(TEXTS), stream=stream, waits=waits, data=data, **columns))
        else:
            kind = draw(st.sampled_from(COLLECTIVES))
            size = draw(st.integers(0, 2**40))
            handles.append(template.collective(kind, "all", size, stream=stream, waits=waits, data=data))
    if handles and draw(st.booleans()):
        template.free(handles[-1], draw(st.integers(0, 2**40)), owner=draw(st.sampled_from(handles)))
    return template


def same_graph(left: Graph, right: Graph) -> bool:
    """Equality of content, row by row, whatever the dictionaries."""
    tables = ("ops", "edges", "frees")
    for table in tables:
        one, other = getattr(left, table), getattr(right, table)
        for name in one.__dataclass_fields__:
            if list(_values(getattr(one, name))) != list(_values(getattr(other, name))):
                return False
    for one, other in zip(left.programs, right.programs, strict=True):
        for name in ("template", "microbatch", "chunk"):
            if not np.array_equal(getattr(one, name), getattr(other, name)):
                return False
        fields = ("name", "ranks", "stage", "layer_offset", "memory")
        if any(getattr(one, name) != getattr(other, name) for name in fields):
            return False
    starts = np.array_equal(left.template_start, right.template_start)
    return (
        starts
        and left.template_names == right.template_names
        and left.workload == right.workload
        and left.groups == right.groups
    )


def _values(column: object) -> list[object]:
    return column.tolist()  # type: ignore[attr-defined, no-any-return]
