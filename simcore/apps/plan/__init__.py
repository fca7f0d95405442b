"""``plan.py``: the planner's command, its table and its files."""
