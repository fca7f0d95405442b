"""Replay of recorded traces: played by the engine, compared with the recording, explained."""

from simcore.replay.levels import LEVELS, play_level
from simcore.replay.play import Replay, play, replay_job, simulate_job
from simcore.replay.split import ReplayedStep, Split, split

__all__ = [
    "LEVELS",
    "Replay",
    "ReplayedStep",
    "Split",
    "play",
    "play_level",
    "replay_job",
    "simulate_job",
    "split",
]
