"""Extensions that GPU machines have and this one lacks: same signatures, same kernels' worth of work."""
