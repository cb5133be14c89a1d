"""The ``lmj`` command, one subcommand a file. Nothing heavy is imported before a subcommand needs it."""
