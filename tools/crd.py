"""Write the CustomResourceDefinition as YAML: ``crd.py FILE...``, or ``crd.py --check FILE...`` to fail when one of them is stale."""

import sys
from pathlib import Path

import yaml

from lmj_api.schema import crd

HEADER = "# Generated from crds/lmj_api by `make crd`: change the models, not this file.\n"


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 when ``--check`` finds a file stale."""
    check = arguments[:1] == ["--check"]
    text = HEADER + yaml.safe_dump(crd(), sort_keys=False, width=120, allow_unicode=True)
    stale = 0
    for path in map(Path, arguments[check:]):
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        if check:
            print(f"{path} is stale: run `make crd` and commit it", file=sys.stderr)
            stale = 1
        else:
            path.write_text(text, "utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
