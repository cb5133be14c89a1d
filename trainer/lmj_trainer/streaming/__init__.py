"""Training rows that are read by parts while a job trains: Parquet files, by row groups, where they lie."""
