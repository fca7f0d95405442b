"""Commands: arguments in, a run folder, tables or one JSON object out."""
