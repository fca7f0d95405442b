"""Jobs as other programs are told them: launch files written from a job, and read back as one."""

from workloads.jobs.launch.dialect import Launch
from workloads.jobs.launch.files import DIALECTS, dialect_of, emitted, read_launch, tells_launch

__all__ = ["DIALECTS", "Launch", "dialect_of", "emitted", "read_launch", "tells_launch"]
