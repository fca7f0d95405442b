"""A measured run beside what was to be expected of it: inside the band or outside, why, what to check."""
