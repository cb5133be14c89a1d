"""Jobs that somebody made to stop the operator: drawn by number from a seed, from the CRD's schema and from kept examples.

``objects`` draws a case, ``told`` says whether a job says why it is as it is, ``trial`` has a real API server and a real operator go
through many of them.
"""
