"""Pipeline schedules as data: per stage a list of (action, microbatch, chunk), validated, made into graphs.

"F" is the forward and "B" the backward of one microbatch on one model chunk.  A job of ``p`` stages with
``v`` chunks each has ``p * v`` virtual stages: chunk ``c`` of stage ``s`` is virtual stage ``c * p + s``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from simcore.errors import InputError
from simcore.graph.builder import GraphBuilder
from simcore.graph.graph import Graph
from simcore.graph.template_builder import OpHandle, Source, TemplateBuilder

Body = Callable[[TemplateBuilder, int, Sequence[Source]], OpHandle]


class Action(NamedTuple):
    """One step of a stage: forward or backward of a microbatch on a model chunk."""

    kind: Literal["F", "B"]
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


Schedule = list[list[Action]]


def gpipe(num_stages: int, num_microbatches: int) -> Schedule:
    """All forwards, then all backwards (GPipe, arXiv 1811.06965)."""
    _check_counts(num_stages, num_microbatches, 1)
    forward = [Action("F", m) for m in range(num_microbatches)]
    backward = [Action("B", m) for m in range(num_microbatches)]
    return [[*forward, *backward] for _ in range(num_stages)]


def one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
    """1F1B with flush (PipeDream-Flush, arXiv 2006.09503): warm-up, alternate, cool-down."""
    return interleaved_one_f_one_b(num_stages, num_microbatches, 1)


def interleaved_one_f_one_b(num_stages: int, num_microbatches: int, num_chunks: int) -> Schedule:
    """Interleaved 1F1B (arXiv 2104.04473, section 2.2), in Megatron's order; one chunk is plain 1F1B.

    Microbatches advance in groups of ``num_stages``: a group on chunk 0, the same group on chunk 1, ...
    InputError when the microbatches are no multiple of the stages (with several chunks).
    """
    _check_counts(num_stages, num_microbatches, num_chunks)
    if num_chunks > 1 and num_microbatches % num_stages:
        raise InputError(
            f"interleaved 1F1B: {num_microbatches} microbatches are no multiple of {num_stages} stages"
        )
    total = num_microbatches * num_chunks
    schedule = []
    for stage in range(num_stages):
        if num_chunks == 1:
            warm_up = min(num_stages - stage - 1, total)
        else:
            warm_up = min(2 * (num_stages - stage - 1) + (num_chunks - 1) * num_stages, total)
        forward = [_forward(step, num_stages, num_chunks) for step in range(total)]
        backward = [_backward(step, num_stages, num_chunks) for step in range(total)]
        steady = [action for pair in zip(forward[warm_up:], backward, strict=False) for action in pair]
        schedule.append([*forward[:warm_up], *steady, *backward[total - warm_up :]])
    return schedule


def _forward(step: int, num_stages: int, num_chunks: int) -> Action:
    if num_chunks == 1:
        return Action("F", step)
    group, within = divmod(step, num_stages * num_chunks)
    chunk, place = divmod(within, num_stages)
    return Action("F", group * num_stages + place, chunk)


def _backward(step: int, num_stages: int, num_chunks: int) -> Action:
    _, microbatch, chunk = _forward(step, num_stages, num_chunks)
    return Action("B", microbatch, num_chunks - 1 - chunk)


def _check_counts(num_stages: int, num_microbatches: int, num_chunks: int) -> None:
    for what, value in (("stages", num_stages), ("microbatches", num_microbatches), ("chunks", num_chunks)):
        if value < 1:
            raise InputError(f"a pipeline needs at least one of its {what}, not {value}")


def needs(action: Action, stage: int, num_stages: int, num_chunks: int) -> list[tuple[int, Action]]:
    """(stage, action) pairs that must be done before ``action`` on ``stage``."""
    virtual = action.chunk * num_stages + stage
    last = num_stages * num_chunks - 1
    if action.kind == "F":
        before = [virtual - 1] if virtual else []
        return [(v % num_stages, Action("F", action.microbatch, v // num_stages)) for v in before]
    found: list[tuple[int, Action]] = [(stage, Action("F", action.microbatch, action.chunk))]
    if virtual < last:
        chunk, later = divmod(virtual + 1, num_stages)
        found.append((later, Action("B", action.microbatch, chunk)))
    return found


def validate_schedule(schedule: Schedule) -> None:
    """Play a schedule out.  InputError with the grid when an action is missing, repeated or can never run."""
    num_stages = len(schedule)
    chunks = 1 + max((action.chunk for actions in schedule for action in actions), default=0)
    expected = set(schedule[0]) if schedule else set()
    for stage, actions in enumerate(schedule):
        repeated = {action for action, count in Counter(actions).items() if count > 1}
        wrong = repeated | (set(actions) ^ expected)
        if wrong:
            action = min(wrong)
            what = "more than once" if action in repeated else "on some stages only"
            raise InputError(f"schedule: {action} stands {what} (stage {stage})\n{_grid(schedule, {})}")
    done: set[tuple[int, Action]] = set()
    at = dict.fromkeys(range(num_stages), 0)
    moved = True
    while moved:
        moved = False
        for stage, actions in enumerate(schedule):
            while at[stage] < len(actions):
                action = actions[at[stage]]
                if not done.issuperset(needs(action, stage, num_stages, chunks)):
                    break
                done.add((stage, action))
                at[stage] += 1
                moved = True
    stuck = {stage: actions[at[stage]] for stage, actions in enumerate(schedule) if at[stage] < len(actions)}
    if stuck:
        missing = {
            stage: [need for need in needs(action, stage, num_stages, chunks) if need not in done]
            for stage, action in stuck.items()
        }
        # A stage that waits for itself is the cause; the others only wait for it.
        stage = min(stuck, key=lambda s: (all(where != s for where, _ in missing[s]), s))
        why = ", ".join(f"{other} of stage {where}" for where, other in missing[stage])
        raise InputError(
            f"schedule: stage {stage}, position {at[stage]}: {stuck[stage]} can never run; it needs {why}\n"
            f"{_grid(schedule, at)}"
        )


def _grid(schedule: Schedule, stuck: dict[int, int]) -> str:
    """One line per stage; the action that cannot run stands in brackets."""
    lines = []
    for stage, actions in enumerate(schedule):
        cells = [f"[{a}]" if stuck.get(stage) == i else str(a) for i, a in enumerate(actions)]
        lines.append(f"  stage {stage}: {' '.join(cells)}")
    return "\n".join(lines)


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
