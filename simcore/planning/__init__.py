"""Which strategy is fastest: what a framework can run, what is legal and fits, and a search with proof."""
