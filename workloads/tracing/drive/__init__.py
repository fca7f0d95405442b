"""Running the ranks of a job that differ, in processes, and asking for it on the command line."""
