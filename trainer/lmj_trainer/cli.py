"""What the trainer's commands have in common."""

import argparse
from typing import NoReturn

from lmj_trainer.errors import UserError


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line, as all errors of a user are."""

    def error(self, message: str) -> NoReturn:
        """Raises UserError."""
        raise UserError(f"{message} (see {self.prog} --help)")
