"""Will it fit, and what makes it fit?  The verdict alone needs no simulation."""

import simcore

job = simcore.describe(
    "llama3-70b", cluster="h100-64", parallel={"tp": 8, "pp": 2}, training={"seq": 8192, "global_batch": 64}
)
print(f"as described: {job.memory}")
for changes in (
    {"training": {"recompute": "full"}},
    {"parallel": {"pp": 4}},
    {"parallel": {"cp": 2}},
):
    print(f"{changes}: {job.changed(**changes).memory}")
