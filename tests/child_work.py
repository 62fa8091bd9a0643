"""What tests have other processes do: these import it by this name, which a test's own module does not have there."""

import os
import threading
import time
from typing import Any


def killed(signal: int) -> None:
    os.kill(os.getpid(), signal)


def own_number(_: Any) -> int:
    return os.getpid()


def lingers(_: Any) -> int:
    """Leave something behind that keeps the process from ending."""
    threading.Thread(target=time.sleep, args=(60,)).start()
    return os.getpid()
