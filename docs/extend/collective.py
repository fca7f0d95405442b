"""all_to_all_v, a collective that the simulator does not have, as somebody would add it: in one file.

Every rank has ``num_bytes``, and member d of the group gets the share of them that the name gives it:
``all_to_all_v:5,1,1,1`` sends five eighths of everything to the first member, whose experts all tokens want.
torch.distributed calls it all_to_all_single with split sizes.
"""

from dataclasses import replace

from simcore.collectives.kinds import Collective, Schedule, Transfer, register
from simcore.errors import InputError
from simcore.graph import GraphBuilder
from simcore.hardware import load_cluster
from simcore.run import run


def _even(name: str) -> Collective:
    """The kind that ``name`` stands for.  InputError unless it ends with a positive number per member."""
    parts = name.partition(":")[2].split(",")
    if not all(part.isdecimal() for part in parts) or not any(map(int, parts)):
        raise InputError(f"collective {name!r}: say all_to_all_v:NUMBER,NUMBER,... with a number per member")
    weights = [int(part) for part in parts]

    def pieces(src: int, dst: int, num_ranks: int) -> float:
        del src  # all ranks prefer the same members
        if len(weights) != num_ranks:
            raise InputError(f"collective {name!r}: a group of {num_ranks} needs {num_ranks} numbers")
        return num_ranks * weights[dst] / sum(weights)

    def pairwise(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
        del channels, chunks
        for step in range(1, num_ranks):
            for src in range(num_ranks):
                dst = (src + step) % num_ranks
                size = round(pieces(src, dst, num_ranks) * num_bytes / num_ranks)
                before = round(sum(weights[:dst]) * num_bytes / sum(weights))
                yield Transfer(step - 1, 0, src, dst, dst, before, size, False)

    return replace(ALL_TO_ALL_V, name=name, pieces=pieces, schedules={"pairwise": pairwise})


ALL_TO_ALL_V = register(Collective("all_to_all_v", grouped=True, variant=_even, bare=False))


if __name__ == "__main__":
    steps = {}
    for collective in ("all_to_all", "all_to_all_v:5,1,1,1"):
        build = GraphBuilder(4, name="exchange")
        build.group("ep", ((4, 1),))  # one of four ranks, next to each other
        template = build.template("tokens")
        template.collective(collective, "ep", 2**30)
        build.program(range(4), [(template, -1, 0)])
        steps[collective] = run(build.build(), load_cluster("h100-8")).step_s
        print(f"{collective}: {steps[collective] * 1e3:.2f} ms")
    assert steps["all_to_all"] < steps["all_to_all_v:5,1,1,1"]
