"""Principal Component Networks: find the small subspaces in which a model's activations live, and train in them."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pcn.api import *  # noqa: F403

__version__ = "0.1.0"

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name when it is first asked for: torch takes a second, which ``pcn --help`` does not need."""
        public = not name.startswith("_")
        if public and find_spec(f"pcn.{name}") is not None:
            return import_module(f"pcn.{name}")
        api = import_module("pcn.api") if public or name == "__all__" else None
        if api is None or not (name == "__all__" or name in api.__all__):
            raise AttributeError(f"module 'pcn' has no attribute {name!r}")
        globals()[name] = getattr(api, name)
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module("pcn.api").__all__})
