"""Many questions asked at once: every combination of settings, a row for each."""
