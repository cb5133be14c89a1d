"""A task and a model of the user's own: a class in a Python file (``model.python``)."""
