"""Commands about a run by where its results are: an output folder, or a folder in object storage."""
