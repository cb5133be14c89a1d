"""``lmj report``: one HTML file about a run, made of the files in its output folder."""
