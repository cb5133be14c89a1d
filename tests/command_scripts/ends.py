"""No training: says a line on each stream and ends with the code that it is given. ``ends.py CODE``."""

import sys

print("here we are")
print("reading the configuration", file=sys.stderr)
if (code := int(sys.argv[1])) != 0:
    print(f"the configuration is wrong: code {code}", file=sys.stderr)
sys.exit(code)
