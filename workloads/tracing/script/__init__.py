"""Any torchrun-style training script as a graph: nothing of it is changed, nothing of it really trains."""
