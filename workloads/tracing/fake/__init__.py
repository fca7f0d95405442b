"""A CUDA device, a job's other ranks and the outside world, none of which is there.

Constructors of torch are imported by name: see :mod:`workloads.tracing.fake.constructors`.
"""
