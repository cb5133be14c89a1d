"""Another cut of the layers while the job trains: pods of it follow those that train, and take over at a step boundary."""
