"""Numbers about real GPUs and clusters, each with unit and source; read by simcore.hardware."""
