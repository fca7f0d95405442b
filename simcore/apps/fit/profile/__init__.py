"""What a measured GPU says: from the tables of ``scripts/profile_gpu.py`` to a hardware profile."""
