"""What tests have other processes do: these import it by this name, which a test's own module does not have there."""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pcn.errors import ConfigError


def killed(signal: int) -> None:
    os.kill(os.getpid(), signal)


def own_number(_: Any) -> int:
    return os.getpid()


def lingers(_: Any) -> int:
    """Leave something behind that keeps the process from ending."""
    threading.Thread(target=time.sleep, args=(60,)).start()
    return os.getpid()


def says_its_number_and_stays(file: Path) -> None:
    file.write_text(str(os.getpid()))
    time.sleep(600)


def drives(file: Path) -> None:
    """Have a process of its own say its number and stay."""
    sys.path.append(str(Path(__file__).parents[1] / "experiments"))
    from processes import run_each

    run_each([file], lambda item: (says_its_number_and_stays, item), lambda item, answer: None)


def fails_at_first(file: Path) -> str:
    """Fail once; the file says whether that has been."""
    if not file.exists():
        file.touch()
        raise RuntimeError("this is the first time")
    return "done"


def wants_a_package(file: Path) -> None:
    with file.open("a") as opened:
        opened.write("asked\n")
    raise ConfigError("a package is missing: install it")
