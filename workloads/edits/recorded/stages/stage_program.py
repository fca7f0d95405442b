"""The program of one rank of a new stage, from the ops of a recorded one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from simcore.graph import Action, OpKind
from simcore.graph.ops import IntArray
from workloads.edits.recorded.rows import sources_of
from workloads.edits.recorded.stages.actions import RecordedAction, RecordedRankStep, shortest_leads
from workloads.edits.recorded.stages.pipelines import moves
from workloads.edits.recorded.stages.plan import PipelineRewrite
from workloads.edits.recorded.stages.program import ProgramWriter, StageExchange, lead_parts


def stage_program(plan: PipelineRewrite, stage: int, index: int, dropped: frozenset[int]) -> ProgramWriter:
    """What a rank of ``stage`` runs: the ops of the recorded rank ``index`` without ``dropped`` rows."""
    return _StageProgram(plan, stage, index).written(dropped)


class _StageProgram:
    def __init__(self, plan: PipelineRewrite, stage: int, index: int) -> None:
        self.plan, self.stage, self.index = plan, stage, index
        self.source = plan.stage_of[index]
        self.steps = plan.recorded.steps[index]
        self.actions = plan.wanted.order[stage]
        self.num_microbatches = 1 + max(action.microbatch for action in self.actions)
        exchanges = np.concatenate([step.exchanges for step in self.steps])
        main = int(plan.job.graph.ops.stream.codes[self.steps[0].pieces[0].body[0]])
        known = frozenset(exchanges.tolist())
        self.writer = ProgramWriter(plan.job, sources_of(plan.job, index), known, main)
        self.shortest = shortest_leads(self.steps, plan.job.graph)

    def written(self, dropped: frozenset[int]) -> ProgramWriter:
        first, last = (int(x) for x in self.plan.job.graph.template_start[self.index : self.index + 2])
        at = first
        for number, step in enumerate(self.steps):
            self.writer.plain(range(at, step.begin), dropped)
            if self.plan.wanted.overlapped:
                self._overlapped(number, step)
            else:
                self._in_turn(number, step)
            at = step.end
        self.writer.plain(range(at, last), dropped)
        return self.writer

    def _in_turn(self, number: int, step: RecordedRankStep) -> None:
        """Exchanges between actions; computation waits for them."""
        done: Action | None = None
        for action in self.actions:
            piece = self._recorded(step, action)
            due = self._due(done, action)
            before, after, like = lead_parts(self.plan.job, piece, step.pieces, bool(due))
            self._lead(before, piece.kind)
            places = self._exchange(step, due)
            self.writer.at_hand(places)
            self._lead(after, like)
            self._body(number, action, places)
            done = action
        self.writer.at_hand(self._exchange(step, self._due(done, None)))
        self.writer.lead(step.tail.tolist(), {}, asynchronous=False)

    def _overlapped(self, number: int, step: RecordedRankStep) -> None:
        """Receives posted an action ahead, sends beside what follows."""
        posted = self._exchange(step, self._due(None, self.actions[0]))
        for place, action in enumerate(self.actions):
            piece = self._recorded(step, action)
            waits = posted
            self.writer.at_hand(waits)
            # What its own lead waits for holds back the weight gradients of no one.
            self._lead(piece.lead[:0] if action.kind == "W" else piece.lead, piece.kind)
            if place + 1 < len(self.actions):
                posted = self._exchange(step, self._due(None, self.actions[place + 1]))
            self._body(number, action, waits)
            self._exchange(step, self._due(action, None))
        self.writer.lead(step.tail.tolist(), {}, asynchronous=True)

    def _lead(self, rows: Iterable[int], kind: str) -> None:
        self.writer.lead([int(row) for row in rows], self.shortest[kind], self.plan.wanted.overlapped)

    def _recorded(self, step: RecordedRankStep, action: Action) -> RecordedAction:
        """The recorded action whose begin a new one has."""
        recorded = self.plan.recorded
        chunk = min(action.chunk, recorded.num_chunks - 1)
        like = Action("F" if action.kind == "F" else "B", self._microbatch(action), chunk)
        return step.pieces[recorded.order[self.source].index(like)]

    def _microbatch(self, action: Action) -> int:
        """The recorded microbatch that stands for an action's; the last alone may reduce gradients."""
        return _like(action.microbatch, self.num_microbatches, self.plan.recorded.num_microbatches)

    def _body(self, number: int, action: Action, waits: list[int]) -> None:
        weights, split = self.plan.weights, action.kind in ("I", "W")
        step = self.steps[number]
        rows = (
            self._recorded(step, action).body if self.plan.layers is None else self._regrouped(number, action)
        )
        if weights is not None and split:
            rows = weights.part(rows, action.kind)
        listed = [int(row) for row in rows]
        begin = self.writer.body(listed, waits)
        if weights is not None and split:
            weights.share(self.writer, begin, listed, action.kind)

    def _regrouped(self, number: int, action: Action) -> IntArray:
        """Rows of an action on the layers that its stage and chunk have now."""
        plan, chunks = self.plan, self.plan.wanted.num_chunks
        assert plan.layers is not None
        forward = action.kind == "F"
        cut = plan.layers.stage(
            self.index, self.source, number, "F" if forward else "B", self._microbatch(action)
        )
        count, own = plan.layers_of(self.stage), len(cut.layers)
        # Places in the model's order; a backward holds its layers in reverse.
        picked = range(action.chunk * (count // chunks), (action.chunk + 1) * (count // chunks))
        layers = [_like(place, count, own) for place in (picked if forward else reversed(picked))]
        parts = [cut.layers[layer if forward else own - 1 - layer] for layer in layers]
        first, last = (cut.head, cut.tail) if forward else (cut.tail, cut.head)
        # What a first or last stage does beside its layers stays there.
        if action.chunk or (self.source == 0 and self.stage):
            first = first[:0]
        if action.chunk < chunks - 1 or (self.source == plan.old_pp - 1 and self.stage < plan.pp - 1):
            last = last[:0]
        return np.concatenate([first, *parts, last] if forward else [last, *parts, first])

    def _due(self, done: Action | None, todo: Action | None) -> list[StageExchange]:
        """What is sent after ``done`` and received before ``todo``."""
        plan, stage = self.plan, self.stage
        pp, chunks, overlapped = plan.pp, plan.wanted.num_chunks, plan.wanted.overlapped
        due = []
        for action, kind in ((done, OpKind.SEND), (todo, OpKind.RECV)):
            if action is None or action.kind == "W":
                continue
            source, target = moves(stage, action, pp, chunks)
            peer = target if kind == OpKind.SEND else source
            if peer < 0:
                continue
            word, chunk = "fwd" if action.kind == "F" else "bwd", action.chunk
            if kind == OpKind.SEND:  # a chunk's number is the receiver's: it names one exchange on both sides
                chunk = (action.chunk * pp + stage + (1 if action.kind == "F" else -1)) // pp
            stream = f"{kind.name.lower()} {word} {chunk}" if overlapped else "stages"
            group = f"stages {word} {chunk}" if overlapped else "stages"
            due.append(StageExchange(kind, stream, group, (peer - stage) % pp, plan.transfer_ps(stage, peer)))
        return due

    def _exchange(self, step: RecordedRankStep, due: list[StageExchange]) -> list[int]:
        """Exchanges written: their places.  Those with one other stage are one launch, in turn."""
        overlapped, like = self.plan.wanted.overlapped, int(step.exchanges[0])
        together = not overlapped and len(due) == 2 and due[0].peer_delta == due[1].peer_delta
        launch = len(self.writer.rows) if together else -1
        return [
            self.writer.exchange(like, one, launch, waits=not overlapped or one.kind == OpKind.SEND)
            for one in due
        ]


def _like(place: int, count: int, own: int) -> int:
    """Of ``own`` recorded layers or microbatches the one that stands for number ``place`` of ``count``."""
    if count == own:
        return place
    if place == 0:
        return 0
    if place == count - 1 or own <= 2:
        return own - 1
    return 1 + (place - 1) % (own - 2)
