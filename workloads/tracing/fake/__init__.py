"""A CUDA device, a job's other ranks and the outside world, none of which is there."""
