"""The families of models that can be cut into stages: where their parts are, and what runs between them."""
