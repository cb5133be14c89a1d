"""Write the CustomResourceDefinition as YAML: ``crd.py FILE...``, or ``crd.py --check FILE...`` to fail when one of them is stale."""

import sys

import yaml
from generated import refresh

from lmj_api.schema import crd

HEADER = "# Generated from crds/lmj_api by `make crd`: change the models, not this file.\n"


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 when ``--check`` finds a file stale."""
    text = HEADER + yaml.safe_dump(crd(), sort_keys=False, width=120, allow_unicode=True)
    return refresh(arguments, lambda _: text, "is stale: run `make crd`")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
