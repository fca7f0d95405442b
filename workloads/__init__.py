"""Where execution graphs come from: traced programs, recorded traces, model descriptions, the catalog."""
