"""The discrete-event engine: ranks as SimPy coroutines, GPUs and links as SimPy resources."""

from simcore.engine.gpu import Gpu, Hold, SmPool
from simcore.engine.kernel import Kernel
from simcore.engine.result import RankTimes, SimulationResult
from simcore.engine.simulate import NETWORKS, simulate
from simcore.engine.variants import Noise, Variants

__all__ = [
    "NETWORKS",
    "Gpu",
    "Hold",
    "Kernel",
    "Noise",
    "RankTimes",
    "SimulationResult",
    "SmPool",
    "Variants",
    "simulate",
]
