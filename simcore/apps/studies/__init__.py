"""How far the fluid network is from packets, and the packet network from other packet simulators."""
