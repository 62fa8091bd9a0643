"""Classes are the connected components of what was coupled, and every one knows why it must stay."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pcn.graph.atoms import Atoms, Carried

COUNT = 24
pairs = st.lists(st.tuples(st.integers(0, COUNT - 1), st.integers(0, COUNT - 1)), max_size=40)


def naive_classes(edges: list[tuple[int, int]]) -> list[int]:
    """Union by repeated relabelling: slow and plain."""
    names = list(range(COUNT))
    for a, b in edges:
        low, high = sorted((names[a], names[b]))
        names = [low if name == high else name for name in names]
    return names


def coupled(edges: list[tuple[int, int]]) -> Atoms:
    atoms = Atoms()
    atoms.fresh(COUNT)
    for a, b in edges:
        atoms.couple(torch.tensor([a]), torch.tensor([b]))
    return atoms


@given(pairs)
def test_classes_are_connected_components_numbered_by_their_smallest_atom(edges: list[tuple[int, int]]) -> None:
    assert coupled(edges).classes().tolist() == naive_classes(edges)


@given(pairs, st.randoms(use_true_random=False))
def test_the_order_of_coupling_does_not_matter(edges: list[tuple[int, int]], random) -> None:  # type: ignore[no-untyped-def]
    shuffled = [(b, a) for a, b in random.sample(edges, len(edges))]
    assert torch.equal(coupled(edges).classes(), coupled(shuffled).classes())


@given(pairs)
def test_coupling_many_at_once_is_coupling_one_by_one(edges: list[tuple[int, int]]) -> None:
    atoms = Atoms()
    atoms.fresh(COUNT)
    atoms.couple(torch.tensor([a for a, _ in edges]).long(), torch.tensor([b for _, b in edges]).long())
    assert atoms.classes().tolist() == naive_classes(edges)


@given(pairs, st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=5))
def test_the_first_reason_given_for_a_class_is_kept(edges: list[tuple[int, int]], pinned: list[int]) -> None:
    atoms = coupled(edges)
    for number, atom in enumerate(pinned):
        atoms.pin(torch.tensor([atom]), f"reason {number}")
    names = naive_classes(edges)
    expected: dict[int, str] = {}
    for number, atom in enumerate(pinned):
        expected.setdefault(names[atom], f"reason {number}")
    assert atoms.pinned(atoms.classes()) == expected


def test_coupling_broadcasts() -> None:
    atoms = Atoms()
    channels, filters = atoms.fresh(2), atoms.fresh(6)
    atoms.couple(channels.view(-1, 1), filters.view(2, 3))
    assert atoms.classes().tolist() == [0, 1, 0, 0, 0, 1, 1, 1]


def test_a_long_chain_is_one_class() -> None:
    atoms = Atoms()
    links = atoms.fresh(5000)
    atoms.couple(links[:-1], links[1:])
    assert not atoms.classes().any()


def test_sizes_that_are_fixed_hold_nothing_to_pin() -> None:
    atoms = Atoms()
    atoms.pin_all(Carried.fixed((3, 4)), "fixed")
    assert atoms.pinned(atoms.classes()) == {}
