"""Which layout of a model is fastest?  A few by hand: what one answer costs, a loop can ask for many."""

import pandas as pd

import simcore
from simcore.errors import OutOfMemoryError

rows = []
for tp, pp in [(1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (2, 4), (4, 2)]:
    job = simcore.describe(
        "llama3-8b",
        cluster="h100-16",
        parallel={"tp": tp, "pp": pp},
        training={"seq": 8192, "global_batch": 64},
    )
    try:
        result = simcore.simulate(job)
    except OutOfMemoryError as error:
        rows.append({"tp": tp, "pp": pp, "step s": None, "what": str(error).splitlines()[0]})
    else:
        rows.append({"tp": tp, "pp": pp, "step s": result.step_time_s, "what": f"MFU {result.mfu:.1%}"})
table = pd.DataFrame(rows).sort_values("step s")
print(table.to_string(index=False, float_format="{:.3f}".format))
