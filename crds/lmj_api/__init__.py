"""The contract between the YAML, the operator and the trainer: data only, imports pydantic only."""
