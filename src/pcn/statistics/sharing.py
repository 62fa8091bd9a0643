"""Which layers read the same activation, agreed on by several that have looked."""

from __future__ import annotations

from collections.abc import Sequence

from pcn.errors import StatisticsError


def agreed_keys(seen: Sequence[dict[str, str]]) -> dict[str, str]:
    """Bring together which layers read the same activation, under the name that the first rank to see it gives it.

    >>> agreed_keys([{"a": "a"}, {"b": "b", "c": "b"}, {"c": "c", "b": "c"}])
    {'a': 'a', 'b': 'b', 'c': 'b'}
    """
    agreed: dict[str, str] = {}
    for rank, key_of in enumerate(seen):
        for key in dict.fromkeys(key_of.values()):
            readers = [name for name, other in key_of.items() if other == key]
            known = {agreed[name] for name in readers if name in agreed}
            elsewhere = [name for name, other in agreed.items() if other in known]
            if not known:
                agreed |= dict.fromkeys(readers, key)
            elif set(elsewhere) != set(readers):
                raise StatisticsError(
                    f"{', '.join(map(repr, readers))} read one activation on rank {rank}, but "
                    f"{', '.join(map(repr, elsewhere))} on a rank before; analyze them apart, with exclude=[...]"
                )
    return agreed
