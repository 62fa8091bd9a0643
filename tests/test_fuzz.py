"""Random models under random requests; `make fuzz` runs the same checks on many more."""

from __future__ import annotations

import warnings
from random import Random

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

import fuzz
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


def test_the_long_run_takes_warnings_as_the_tests_do() -> None:
    with warnings.catch_warnings():
        fuzz.quiet_worker()
        assert fuzz.run_seed(18, list(fuzz.BY_NAME)).failure is None  # a plan of more directions than samples show
        with pytest.raises(UserWarning, match="anything else"):
            warnings.warn("anything else", stacklevel=1)
