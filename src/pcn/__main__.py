"""``python -m pcn`` is ``pcn``."""

from pcn.cli import main

if __name__ == "__main__":
    code = main()
    from pcn.training.world import leave  # only now: a command that needs no torch has not waited for it

    leave(code)
