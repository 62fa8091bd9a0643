"""Random models under random requests; `make fuzz` runs the same checks on many more."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

from random_models.choices import Choices
from random_models.properties import PROPERTIES, Property

few = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("check", PROPERTIES, ids=lambda check: check.__name__)
def test_property(check: Property) -> None:
    @few
    @given(st.randoms(use_true_random=False))
    def holds(random: Random) -> None:
        choices = Choices(random.randrange)
        try:
            event(check(choices))
        except BaseException:
            note(f"Choices.replayed({choices.taken}) makes this case again")
            raise

    holds()
