"""Processes that a test starts have the same mutant as the test."""

import os

if os.environ.get("LMJ_MUTANT"):
    from mutants.hook import install

    install()
