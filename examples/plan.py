"""Which strategy is fastest, and how much faster can any other be at most?"""

import rich

import simcore

found = simcore.plan("llama3-8b", cluster="h100-8", global_batch=32, seq=4096, polish=False)
rich.print(found)
print(f"of {len(found.trials):,} candidates none is more than {found.certificate['gap']:.1%} faster")
print(found.best.to_yaml())  # what run_sim.py takes
