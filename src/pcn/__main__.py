"""``python -m pcn`` is ``pcn``."""

from pcn.cli import main
from pcn.training.world import leave

if __name__ == "__main__":
    leave(main())
