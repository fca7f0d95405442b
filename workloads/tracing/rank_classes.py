"""Which ranks do the same?  Found by hashing what each recorded, never assumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from workloads.tracing.job import MegatronGptJob

#: Up to this many ranks, every single one is run.  Beyond, a sample stands for the rest, with a warning.
MAX_RANKS_RUN = 256


@dataclass(frozen=True)
class RankClass:
    """Ranks of one pipeline stage that recorded the same; ``representative`` is the lowest."""

    stage: int
    ranks: tuple[int, ...]

    @property
    def representative(self) -> int:
        """The rank that is traced for the class."""
        return self.ranks[0]


def sample_ranks(job: MegatronGptJob) -> tuple[list[int], dict[int, int]]:
    """Ranks to run, and for every rank of the world the run rank that stands for it.

    Small worlds: every rank, for itself.  Large ones: of each stage, the first two and last two positions
    along the tensor-, context- and data-parallel axis; a position between them is stood for by the
    second.  (Frameworks treat the ends of an axis specially; shards of a buffer may end unevenly, which
    shows at the last.)
    """
    if job.world_size <= MAX_RANKS_RUN:
        return list(range(job.world_size)), {rank: rank for rank in range(job.world_size)}
    stands_for: dict[int, int] = {}
    for rank in range(job.world_size):
        rest, tp = divmod(rank, job.tp)
        rest, cp = divmod(rest, job.cp)
        pp, dp = divmod(rest, job.dp)
        tp, cp, dp = _stand_in(tp, job.tp), _stand_in(cp, job.cp), _stand_in(dp, job.dp)
        stands_for[rank] = ((pp * job.dp + dp) * job.cp + cp) * job.tp + tp
    return sorted(set(stands_for.values())), stands_for


def _stand_in(index: int, size: int) -> int:
    return index if index < 2 or index >= size - 2 else 1


def group_ranks(
    fingerprints: Mapping[int, str], stands_for: Mapping[int, int], stage_of: Mapping[int, int]
) -> list[RankClass]:
    """Classes by (stage, fingerprint), ordered by stage, then by lowest rank."""
    members: dict[tuple[int, str], list[int]] = {}
    for rank in sorted(stands_for):
        members.setdefault((stage_of[rank], fingerprints[stands_for[rank]]), []).append(rank)
    classes = [RankClass(stage, tuple(ranks)) for (stage, _), ranks in members.items()]
    return sorted(classes, key=lambda one: (one.stage, one.representative))


def sampling_warning(job: MegatronGptJob, run: Sequence[int]) -> str:
    """What a user must know when not every rank was run."""
    return (
        f"world of {job.world_size} ranks: {len(run)} were run (both ends of the tensor-, context- and "
        f"data-parallel axes of every stage); ranks between them are taken to do what the second one does"
    )


def contiguous_text(ranks: Iterable[int]) -> str:
    """``"0-7, 16"``: ranks for a message."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
