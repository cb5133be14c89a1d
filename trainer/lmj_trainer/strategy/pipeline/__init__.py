"""The pipeline: the order of forwards and backwards, and a step's way through the stages."""
