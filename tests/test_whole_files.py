"""Files are there whole or not at all, and nothing is left beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pcn import whole_files


@pytest.mark.parametrize("stopped", [OSError, KeyboardInterrupt])
def test_what_stops_a_write_leaves_the_file_that_was_there_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: type[BaseException]
) -> None:
    def stop(*_: object) -> None:
        raise stopped

    whole_files.write_whole(tmp_path / "file", b"old")
    monkeypatch.setattr(whole_files, "flush", stop)
    with pytest.raises(stopped):
        whole_files.write_whole(tmp_path / "file", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}
