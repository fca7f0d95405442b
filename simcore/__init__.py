"""Simulator of distributed training: an execution graph in, a timeline out."""
