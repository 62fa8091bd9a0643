"""What is held when most is held, out of an allocator's history."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.integers(1, 9), max_size=20), st.randoms(use_true_random=False), st.booleans())
def test_what_lives_at_the_peak_adds_up_to_it(sizes: list[int], random: Any, early: bool) -> None:
    from step_memory import alive_at_peak

    events = [{"action": "free_requested", "addr": -1, "size": 99}] if early else []  # of what was there before
    alive: dict[int, int] = {}
    held = most = 0
    for place, size in enumerate(sizes):
        events.append({"action": "alloc", "addr": place % 7, "size": size})
        alive[place % 7] = size
        held = sum(alive.values())
        most = max(most, held)
        for other in [other for other in alive if other == (place + 1) % 7 or random.random() < 0.3]:
            freed = {"addr": other, "size": alive.pop(other)}
            events += [{"action": action, **freed} for action in ("free_requested", "free_completed")]
    found = alive_at_peak(events)
    assert sum(event["size"] for event in found) == most
    assert len({event["addr"] for event in found}) == len(found)


def test_blocks_are_named_by_the_line_that_asked_for_them() -> None:
    from step_memory import asked_by

    frames = [
        {"filename": "/somewhere/model.py", "line": 3, "name": "forward"},
        {"filename": "b", "line": 1, "name": ""},
    ]
    assert asked_by({"frames": frames}) == "model.py:3 forward"
    assert asked_by({"frames": []}).startswith("unknown")
