"""RoCE's two answers to congestion: pause frames of the link layer (PFC) and a rate per queue pair (DCQCN).

Note [DCQCN]
    A switch marks packets with a probability that rises with the queue that they leave.  A receiver of
    marked packets sends a notification (CNP), at most one per ``cnp_interval_ps``.  Its arrival cuts the
    sender's rate R to R (1 - alpha / 2), makes the old R the target, and alpha to (1 - g) alpha + g.  Every
    ``alpha_timer_ps`` without one, alpha falls to (1 - g) alpha.  The rate rises at every
    ``increase_timer_ps`` and at every ``increase_bytes`` sent: for the first ``fast_recovery_steps`` of
    either halfway to the target (fast recovery); then the target moves up by ``additive_share`` of the line
    rate each time, or, when both have passed that many, by ``hyper_share`` times how often (Zhu et al.,
    SIGCOMM 2015, section 3 and figure 7).
    Nothing of this is an event: a rate is brought up to date when somebody asks for it.
"""

from __future__ import annotations

import random
from typing import Final

from simcore.elementary import power
from simcore.errors import InputError
from simcore.records import dataclass
from simcore.units import PS_PER_US

#: A rate so close to the line's is the line's: pacing it would change nothing but the number of events.
_RECOVERED: Final = 0.999


@dataclass(frozen=True)
class RoceSettings:
    """PFC and DCQCN.  Defaults are DCQCN's published deployment (Zhu et al., SIGCOMM 2015, section 5) with
    marking thresholds that grow with the link's rate (HPCC, Li et al., SIGCOMM 2019, section 5.1: 100 KB and
    400 KB per 25 Gb/s).

    ``pfc_xoff_bytes``: what may wait in the buffer behind one cable before its sender is paused, and
    ``pfc_xon_bytes`` what must be left before it goes on (static thresholds; 32 MB of shared memory, as in
    HPCC's switches, give one congested port of many some megabytes).  ``pfc``, ``dcqcn``: switch each off.
    ``mark_from_s``, ``mark_all_s``: queue, as time of the link, from which packets are marked at all, and
    from which all are; ``mark_share``: probability just below the latter (HPCC's switches: 0.2).
    Shares are of the line rate: 40 Mb/s of 40 Gb/s, ten times that for the hyper increase.
    """

    pfc: bool = True
    dcqcn: bool = True
    pfc_xoff_bytes: int = 4_000_000
    pfc_xon_bytes: int = 3_992_000
    mark_from_s: float = 32e-6
    mark_all_s: float = 128e-6
    mark_share: float = 0.2
    cnp_interval_ps: int = 50 * PS_PER_US
    gain: float = 1.0 / 256.0
    alpha_timer_ps: int = 55 * PS_PER_US
    increase_timer_ps: int = 55 * PS_PER_US
    increase_bytes: int = 10_000_000
    fast_recovery_steps: int = 5
    additive_share: float = 0.001
    hyper_share: float = 0.01
    least_share: float = 0.001

    def __post_init__(self) -> None:
        for name in (
            "pfc_xoff_bytes",
            "cnp_interval_ps",
            "alpha_timer_ps",
            "increase_timer_ps",
            "increase_bytes",
        ):
            if not getattr(self, name) >= 1:
                raise InputError(f"RoCE: {name} must be at least 1, not {getattr(self, name)}")
        for name in ("mark_share", "gain", "additive_share", "hyper_share", "least_share"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise InputError(f"RoCE: {name} must be above 0 and at most 1, not {getattr(self, name)}")
        if not 0 <= self.pfc_xon_bytes <= self.pfc_xoff_bytes:
            raise InputError(
                f"RoCE: pfc_xon_bytes must be between 0 and pfc_xoff_bytes = {self.pfc_xoff_bytes},"
                f" not {self.pfc_xon_bytes}"
            )
        if not 0.0 <= self.mark_from_s <= self.mark_all_s:
            raise InputError(
                f"RoCE: mark_from_s must be between 0 and mark_all_s = {self.mark_all_s},"
                f" not {self.mark_from_s}"
            )

    def mark_probability(self, queue_s: float) -> float:
        """Probability that a packet is marked that leaves a queue of ``queue_s`` seconds of the link."""
        if queue_s <= self.mark_from_s:
            return 0.0
        if queue_s >= self.mark_all_s:
            return 1.0
        return self.mark_share * (queue_s - self.mark_from_s) / (self.mark_all_s - self.mark_from_s)


class Marker:
    """Marks what leaves one switch port, packet by packet; a segment is marked if one of its packets is."""

    def __init__(
        self, settings: RoceSettings, bytes_per_s: float, packet_bytes: int, generator: random.Random
    ) -> None:
        self._settings = settings
        self._s_per_byte = 1.0 / bytes_per_s
        self._packet_bytes = packet_bytes
        self._generator = generator

    def marks(self, queued_bytes: int, num_bytes: int) -> bool:
        """Whether a segment is marked that leaves a queue of ``queued_bytes``, itself included."""
        share = self._settings.mark_probability(queued_bytes * self._s_per_byte)
        if share <= 0.0 or share >= 1.0:
            return share > 0.0
        packets = max(1.0, num_bytes / self._packet_bytes)
        unmarked = power(1.0 - share, packets)
        return self._generator.random() >= unmarked


class RateControl:
    """DCQCN's reaction point: the rate of one queue pair, bytes/ps.  See Note [DCQCN]."""

    __slots__ = (
        "_alpha", "_alpha_at", "_by_bytes", "_by_timer", "_bytes", "_line", "_notified_at", "_rate",
        "_settings", "_target", "_timer_at", "num_cuts",
    )  # fmt: skip

    def __init__(self, settings: RoceSettings, line_bytes_per_ps: float) -> None:
        self._settings = settings
        self._line = self._rate = self._target = line_bytes_per_ps
        self._alpha = 1.0
        self._alpha_at = self._timer_at = 0  # when alpha last fell, when the timer last ran out
        self._bytes = self._by_bytes = self._by_timer = 0
        self._notified_at = -settings.cnp_interval_ps
        self.num_cuts = 0

    def notifies(self, now_ps: int) -> bool:
        """Whether the receiver answers a marked packet that arrives now (at most one in an interval)."""
        if now_ps - self._notified_at < self._settings.cnp_interval_ps:
            return False
        self._notified_at = now_ps
        return True

    def limit(self, now_ps: int) -> float | None:
        """Rate now in bytes/ps; None when it is the line's."""
        if self._rate >= self._line * _RECOVERED:
            return None
        period = self._settings.increase_timer_ps
        while now_ps - self._timer_at >= period:
            self._timer_at += period
            self._by_timer += 1
            self._increase()
        return self._rate if self._rate < self._line * _RECOVERED else None

    def sent(self, num_bytes: int) -> None:
        """Count bytes towards the next increase."""
        self._bytes += num_bytes
        while self._bytes >= self._settings.increase_bytes:
            self._bytes -= self._settings.increase_bytes
            self._by_bytes += 1
            self._increase()

    def cut(self, now_ps: int) -> None:
        """A notification has arrived."""
        settings = self._settings
        self.limit(now_ps)
        if self.num_cuts:
            quiet = (now_ps - self._alpha_at) // settings.alpha_timer_ps
            self._alpha *= power(1.0 - settings.gain, quiet)
        self._target = self._rate
        self._rate = max(self._rate * (1.0 - self._alpha / 2.0), settings.least_share * self._line)
        self._alpha = (1.0 - settings.gain) * self._alpha + settings.gain
        self._alpha_at = self._timer_at = now_ps
        self._bytes = self._by_bytes = self._by_timer = 0
        self.num_cuts += 1

    def _increase(self) -> None:
        settings = self._settings
        steps = settings.fast_recovery_steps
        if min(self._by_bytes, self._by_timer) > steps:
            beyond = min(self._by_bytes, self._by_timer) - steps
            self._target += beyond * settings.hyper_share * self._line
        elif max(self._by_bytes, self._by_timer) > steps:
            self._target += settings.additive_share * self._line
        self._target = min(self._target, self._line)
        self._rate = (self._rate + self._target) / 2.0
