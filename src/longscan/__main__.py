"""`python -m longscan`: the command `longscan`, where it is not on the path."""

import sys

from longscan.cli import main

if __name__ == "__main__":
    sys.exit(main())
