"""From a job to the objects that it is made of: pure, frozen values in, plain mappings out."""
