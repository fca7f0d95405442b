"""A graph that runs a schedule, with bodies of given length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simcore.graph.builder import GraphBuilder
from simcore.graph.graph import Graph
from simcore.graph.schedules.actions import Schedule
from simcore.graph.schedules.validate import validate_schedule
from simcore.graph.template_builder import OpHandle, Source, TemplateBuilder

Body = Callable[[TemplateBuilder, int, Sequence[Source]], OpHandle]


def kernel_body(duration_ps: int) -> Body:
    """A body of one compute kernel that lasts ``duration_ps``."""

    def write(template: TemplateBuilder, stage: int, waits: Sequence[Source]) -> OpHandle:
        return template.compute(f"stage{stage}.{template.name}", waits=waits, recorded_ps=duration_ps)

    return write


def pipeline_graph(
    schedule: Schedule,
    *,
    forward: Body | int,
    backward: Body | int,
    num_bytes: int,
    tp: int = 1,
    name: str = "pipeline",
) -> Graph:
    """A graph that runs ``schedule`` on ``len(schedule) * tp`` ranks; tensor-parallel ranks are copies.

    ``forward`` and ``backward`` are durations in ps, or functions ``(template, stage, waits) -> last op``
    that write a body whose first op takes ``waits``.  ``num_bytes`` cross each stage boundary.  Each
    direction has send and recv streams of its own: no order of actions blocks on communication alone.
    InputError when the schedule cannot run.
    """
    validate_schedule(schedule)
    stages, chunks = len(schedule), 1 + max(action.chunk for action in schedule[0])
    microbatches = 1 + max(action.microbatch for action in schedule[0])
    build = GraphBuilder(stages * tp, name=name, dims={"pp": stages, "tp": tp}, num_microbatches=microbatches)
    if stages > 1:
        build.group("pp", dims=((stages, tp),))
    bodies = {
        "F": kernel_body(forward) if isinstance(forward, int) else forward,
        "B": kernel_body(backward) if isinstance(backward, int) else backward,
    }
    last = stages * chunks - 1
    for stage, actions in enumerate(schedule):
        templates = {}
        for chunk in range(chunks):
            virtual = chunk * stages + stage
            templates["F", chunk] = _action_template(
                build, "fwd", stage, bodies["F"], num_bytes, -1, virtual > 0, virtual < last
            )
            templates["B", chunk] = _action_template(
                build, "bwd", stage, bodies["B"], num_bytes, +1, virtual < last, virtual > 0
            )
        skeleton = [(templates[a.kind, a.chunk], a.microbatch, a.chunk) for a in actions]
        ranks = range(stage * tp, (stage + 1) * tp)
        layers = tuple(chunk * stages + stage for chunk in range(chunks))
        build.program(ranks, skeleton, stage=stage, name=f"stage{stage}", layer_offset=layers)
    return build.build()


def _action_template(
    build: GraphBuilder,
    name: str,
    stage: int,
    body: Body,
    num_bytes: int,
    source: int,
    receives: bool,
    sends: bool,
) -> TemplateBuilder:
    """Receive from ``source`` (-1: previous stage, +1: next), run the body, send to the other side."""
    template = build.template(name)
    waits: list[Source] = []
    if receives and build.has_group("pp"):
        waits.append(template.recv("pp", source, num_bytes, stream=f"pp.recv.{name}"))
    done = body(template, stage, waits)
    if sends and build.has_group("pp"):
        template.send("pp", -source, num_bytes, stream=f"pp.send.{name}", waits=(done,))
    return template
