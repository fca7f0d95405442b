"""Published training runs: their cases simulated, in parallel and once each, and scored."""
