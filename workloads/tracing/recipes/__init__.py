"""Training scripts to trace or to run under torchrun: nothing here knows of the tracer."""
