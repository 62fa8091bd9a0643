"""Channels in proportion: within the size, in steps, near to what is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pcn.planner.proportion import Group, fewest, in_proportion

GROUPS = st.lists(
    st.builds(Group, st.integers(1, 300), st.floats(0.01, 1.0), st.just(0), st.sampled_from([1, 3, 8, 16])),
    min_size=1,
    max_size=6,
)


def chain(counts: Sequence[int]) -> int:
    """The weights of dense layers behind one another, between ten inputs and ten outputs."""
    return sum(a * b for a, b in zip([10, *counts], [*counts, 10], strict=True))


@given(GROUPS, st.floats(0.0, 1.0))
def test_the_size_is_never_passed(groups: list[Group], part: float) -> None:
    least, whole = chain(fewest(groups)), chain([group.channels for group in groups])
    most = round(least + part * (whole - least))
    counts = in_proportion(groups, chain, most, enough=0.98 * most)
    assert chain(counts) <= most
    assert all(0 < count <= group.channels for count, group in zip(counts, groups, strict=True))


@given(st.integers(1, 300), st.floats(0.01, 1.0), st.sampled_from([1, 3, 8, 16]), st.floats(0.5, 3.0))
def test_no_group_is_rounded_far_off(channels: int, share: float, step: int, factor: float) -> None:
    group = Group(channels, share, step=step)
    kept, wish = group.kept(factor), group.wish(factor)
    assert kept <= channels
    assert abs(kept - wish) <= max(0.5, wish / 4)
    assert kept == channels or kept % group.step_at(wish) == 0


def test_a_least_is_kept_unless_the_others_would_lose_half_of_their_proportion() -> None:
    groups = [Group(64, 0.25), Group(64, 0.25, least=24)]
    assert in_proportion(groups, chain, 1000, enough=980)[1] == 24
    assert in_proportion(groups, chain, 400, enough=392)[1] < 24
