"""The discrete-event engine: ranks as SimPy coroutines, GPUs and links as SimPy resources."""

from simcore.engine.gpu import Gpu, Hold, SmPool
from simcore.engine.kernel import Kernel
from simcore.engine.result import RankTimes, SimulationResult
from simcore.engine.simulate import NETWORKS, simulate

__all__ = ["NETWORKS", "Gpu", "Hold", "Kernel", "RankTimes", "SimulationResult", "SmPool", "simulate"]
