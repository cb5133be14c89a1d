"""Do the tests notice when the code is wrong? ``python -m mutants`` breaks one place at a time and runs the tests that go through it."""
