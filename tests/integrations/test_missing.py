"""Without its framework, an integration says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest

import pcn


@pytest.mark.parametrize("name", ["accelerate", "lightning", "transformers"])
def test_what_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"pcn.integrations.{name}", raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    if name == "lightning":
        monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    with pytest.raises(pcn.PCNError, match=f"pip install {name}"):
        importlib.import_module(f"pcn.integrations.{name}")
