"""The store at which the processes of a view meet, served by a process of the leader's launcher.

It listens before the script needs it. Were it served by rank 0, as where nobody else does, a rank that comes before that one would find
nobody, and torch tries again only after up to half a second. The agent of torchrun serves it, too.
"""

from pathlib import Path

PROGRAM = str(Path(__file__).with_name("serve.py"))
"""Run with Python: ``serve.py HOST PORT``. It is alone in its folder, which comes first where it looks for modules: nothing there, nor in
the working directory, takes the place of what it imports."""
