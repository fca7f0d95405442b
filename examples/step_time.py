"""How long does a step take, why, and what was assumed to say so?"""

import rich

import simcore

job = simcore.describe(
    "llama3-70b",
    cluster="h100-256",
    parallel={"tp": 8, "pp": 4},
    training={"seq": 8192, "global_batch": 256},
)
result = simcore.simulate(job)

rich.print(job)  # what was asked, and what was taken for granted
print(
    f"a step takes {result.step_time_s:.2f} s, {result.band.low_s:.2f} to {result.band.high_s:.2f} s with 80%"
)
print(f"{result.tokens_per_s:,.0f} tokens/s, MFU {result.mfu:.1%}; memory {job.memory}")
for part, seconds in result.breakdown_s.items():
    print(f"  {part:<22} {seconds:7.3f} s  {seconds / result.step_time_s:6.1%}")
