"""What profilers of GPUs have in common: launches, kernels, waits and collectives become a graph."""
