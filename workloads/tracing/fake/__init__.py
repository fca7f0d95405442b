"""A CUDA device, a job's other ranks and the outside world, none of which is there.

Constructors of torch are imported by name: programs replace ``torch.empty`` and the like while they make
their models, to choose device and dtype, and do not mean what is made here.
"""
