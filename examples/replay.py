"""What if, of a recording: played back by the engine beside what was recorded, then changed.

The recording here is made from a simulated job, so that the example needs none; give files of torch.profiler.
"""

import tempfile
from pathlib import Path

import rich

import simcore
from simcore.report import write_kineto

with tempfile.TemporaryDirectory() as folder:
    job = simcore.describe(
        "llama3-8b", cluster="h100-8", parallel={"tp": 2, "dp": 1}, training={"seq": 4096, "global_batch": 1}
    )
    files = write_kineto(simcore.simulate(job).timeline, Path(folder) / "trace.json.gz", [0, 1])
    recording = simcore.replay(files)
    print(recording.steps.to_string(index=False))
    quicker = recording.edit("class.gemm.speed=2")
    rich.print(quicker.edits[0].lines())
    before_ms, after_ms = recording.step_time_s * 1e3, quicker.step_time_s * 1e3
    print(f"{before_ms:.1f} ms recorded, {after_ms:.1f} ms with products twice as fast")
