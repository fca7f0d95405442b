"""What the simulator itself costs."""
