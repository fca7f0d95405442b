"""The discrete-event engine: ranks as SimPy coroutines, GPUs and links as SimPy resources."""

from simcore.engine.gpu import Gpu, Hold, SmPool
from simcore.engine.kernel import RunningKernel
from simcore.engine.result import Answered, LinkCounters, RankTimes, SimulationResult
from simcore.engine.simulate import NETWORKS, simulate
from simcore.engine.variants import Noise, Variants

__all__ = [
    "NETWORKS",
    "Answered",
    "Gpu",
    "Hold",
    "LinkCounters",
    "Noise",
    "RankTimes",
    "RunningKernel",
    "SimulationResult",
    "SmPool",
    "Variants",
    "simulate",
]
