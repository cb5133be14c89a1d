"""The model: which modules make a stage, where its weights come from, and how dropout is seeded."""
