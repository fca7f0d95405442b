"""What one rank launches, communicates and holds, written down and assembled to a graph."""
