"""Ranks that go through cells together, each asleep as if it met nobody but itself.

Note [Company]
    Where the members of a tensor-parallel group behave alike, one of them stands for all, and meets nobody
    but itself in the group's collectives.  Members may be classes of their own, though: the first one has
    another optimizer, or nothing is folded.  They still play equal cells from equal moments on, over links
    that nobody else has.  Then each goes through its cells as if the others always arrived when it does, and
    when an instant in which something happened to one of them is over, the same must have happened to all.
    Where not, or where a cell of one has to be played event by event, those of all are, from their begin on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from simcore.engine.shortcuts.apart import Actor, Disturbance, replay

if TYPE_CHECKING:
    from simcore.clock import Clock
    from simcore.engine.gpu import Gpu


class Member(Actor, Protocol):
    """A rank's stretch of cells under way; its ``flows`` are those on the GPU since its cell began."""

    @property
    def state(self) -> object:
        """Where it stands: equal for ranks to which the same has happened."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether it ends now, though its event has not come yet."""
        ...

    def finish(self) -> None:
        """It is over."""
        ...

    def since(self) -> int:
        """When its cell under way began, ps."""
        ...

    @property
    def changes(self) -> Sequence[tuple[int, Disturbance]]:
        """What others have done since then, and how much later, ps."""
        ...

    def wake(self) -> None:
        """Have the rank go on by itself from where the cell begins, which is now."""
        ...


class Company:
    """``size`` ranks whose GPUs are ``gpus``, as far as they have any cells.  ``begun`` counts stretches of
    cells, ``taken_apart`` those of which a cell had to be played event by event.
    """

    def __init__(self, clock: Clock, size: int) -> None:
        self.gpus: list[Gpu] = []
        self.begun = self.taken_apart = 0
        self.is_one = size == 1
        self._size = size
        self._clock = clock
        self._checked_ps = -1

    def acted(self) -> None:
        """Something has happened to a member, now: it must have happened to all when this instant is over."""
        if not self.is_one and self._checked_ps != self._clock.now:
            self._checked_ps = self._clock.now
            self._clock.at_the_end(self._check)

    def _check(self) -> None:
        self._checked_ps = -1
        states = {None if member is None else member.state for member in self._members()}
        if states != {None} and (len(states) > 1 or len(self.gpus) < self._size):
            self.take_apart()

    def take_apart(self) -> None:
        """Play the cells under way, event by event, from their begin up to now, where the ranks go on."""
        for member in self._members():
            if member is not None and member.is_over:
                member.finish()
        members = [member for member in self._members() if member is not None]
        if not members:
            return
        self.taken_apart += len(members)
        begins = {member.since() for member in members}
        assert len(begins) == 1, "members of a company began a cell at different times"
        (begin,) = begins
        changes: list[tuple[int, Actor, Disturbance]] = [
            (begin + since_ps, member, change) for member in members for since_ps, change in member.changes
        ]
        changes.sort(key=lambda one: one[0])
        held_for = [(member.gpu.sms, member.gpu.sms.held_for.copy()) for member in members if member.changes]
        with self._clock.catching_up(begin):
            for member in members:
                member.wake()
            replay(self._clock, changes)
        for sms, before in held_for:
            sms.held_for = before

    def _members(self) -> list[Member | None]:
        return [gpu.sleeper for gpu in self.gpus]  # type: ignore[misc]
