"""``lmj export``: the model of any checkpoint of a job, also while it trains."""
