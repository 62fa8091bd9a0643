"""``python -m pcn`` is ``pcn``."""

import sys

from pcn.cli import main

if __name__ == "__main__":
    sys.exit(main())
