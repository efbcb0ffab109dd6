"""Roles of heads: thresholds, labels and intervals that contain a threshold."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_plasticity.roles import (
    MIXED,
    NAMES,
    RESTING,
    ROLES,
    UNSURE,
    Label,
    check_thresholds,
    default_thresholds,
    label,
    possible_roles,
    repeated_decide,
)

LIMITS = default_thresholds()
REPEATED = {"repeated_induction": 0.0, "repeated_duplicate": 0.0}
"""Scores of a head on repeated tokens that is neither."""
SCORES = st.dictionaries(
    st.sampled_from(
        [*(role.column for role in ROLES), *(role.repeated_column or "" for role in ROLES[:2])]
    ),
    st.floats(0, 1) | st.just(math.nan),
)


def sure_label(values):
    """The label of a head whose scores have no error."""
    return label(values, dict.fromkeys(values, 0.0), LIMITS)


def test_the_first_role_that_reaches_its_threshold_is_the_label():
    assert sure_label(REPEATED).role == MIXED
    for role in ROLES:
        known = REPEATED if role.repeated_column is None else {"repeated_induction": math.nan}
        assert sure_label({**known, role.column: role.threshold}).role == role.name
        below = math.nextafter(role.threshold, 0)
        assert sure_label({**known, role.column: below}).likely_role == MIXED
    both = {role.column: 0.9 for role in ROLES}
    assert sure_label(both).role == "induction"


def test_scores_on_repeated_tokens_decide_if_they_are_known():
    on_texts = {"induction_excess": 0.9}
    assert sure_label(on_texts).role == "induction"
    assert sure_label({**on_texts, "repeated_induction": 0.1}).role == MIXED
    assert sure_label({**on_texts, "repeated_induction": math.nan}).role == "induction"
    assert sure_label({"repeated_duplicate": 0.5}).role == "duplicate"


@pytest.mark.parametrize("unknown", [{}, {"repeated_induction": math.nan}], ids=str)
@pytest.mark.parametrize("role", [role for role in ROLES if role.name in RESTING], ids=str)
def test_without_repeated_tokens_a_resting_head_is_unsure(role, unknown):
    """An induction head rests while no token repeats, so that it can look like one of these."""
    for values, likely in (({role.column: 0.9}, role.name), ({role.column: 0.0}, MIXED)):
        found, widths = sure_label({**unknown, **values}), dict.fromkeys(values, 0.0)
        assert (found.role, found.likely_role) == (UNSURE, likely)
        assert possible_roles({**unknown, **values}, widths, LIMITS) == ["induction", likely]
        assert repeated_decide(unknown, [likely])
        assert sure_label({**values, "repeated_induction": 0.1}).role == likely
        assert sure_label({**values, "repeated_induction": 0.5}).role == "induction"
    previous = {**unknown, "previous_mass": 0.9, role.column: 0.9}
    assert sure_label(previous).role == "previous"
    assert not repeated_decide(unknown, ["previous", "self", "local"])


def test_a_score_without_an_error_makes_no_role_sure():
    """With 1 to 3 texts a score has a value and no error."""
    values = {**REPEATED, "previous_mass": 0.95, "sink_rate": 0.02}
    known = dict.fromkeys(values, 0.01)
    assert label(values, known, LIMITS).role == "previous"
    for missing in ("previous_mass", "repeated_induction"):
        widths = {**known, missing: math.nan}
        found = label(values, widths, LIMITS)
        assert (found.role, found.likely_role) == (UNSURE, "previous"), missing
    assert label(values, {}, LIMITS) == Label(UNSURE, "previous")
    # a later score does not matter
    assert label(values, {**known, "sink_rate": math.nan}, LIMITS).role == "previous"


def test_an_interval_that_contains_a_threshold_is_unsure():
    values = {**REPEATED, "previous_mass": 0.45, "sink_rate": 0.9}
    widths = dict.fromkeys(values, 0.0)
    assert label(values, {**widths, "previous_mass": 0.04}, LIMITS).role == "previous"
    found = label(values, {**widths, "previous_mass": 0.06}, LIMITS)
    assert (found.role, found.likely_role) == (UNSURE, "previous")
    # the head may also be a previous-token head, so that it is not surely a sink
    found = label({**values, "previous_mass": 0.38}, {**widths, "previous_mass": 0.06}, LIMITS)
    assert (found.role, found.likely_role) == (UNSURE, "sink")
    # a later threshold does not matter
    assert label(values, {**widths, "sink_rate": 0.6}, LIMITS).role == "previous"


@given(SCORES, st.floats(0, 0.5))
def test_a_label_is_a_name_and_wider_intervals_never_make_it_sure(values, half):
    found = sure_label(values)
    unknown = repeated_decide(values, [found.likely_role])
    assert found.role == (UNSURE if unknown else found.likely_role)
    assert found.likely_role in NAMES
    widths = dict.fromkeys(values, half)
    wide, wider = label(values, widths, LIMITS), label(values, dict.fromkeys(values, 2.0), LIMITS)
    assert wide.likely_role == wider.likely_role == found.likely_role
    assert wide.role in (UNSURE, found.role)
    assert wider.role == UNSURE or wider.role == wide.role
    possible = possible_roles(values, widths, LIMITS)
    assert (len(possible) > 1) == (wide.role == UNSURE)
    seen = set()
    for steps in product((-0.999, 0.999), repeat=len(values)):  # corners of the intervals
        moved = {
            name: value + half * step
            for (name, value), step in zip(values.items(), steps, strict=True)
        }
        seen.add(sure_label(moved).role)
    assert seen - {UNSURE} <= set(possible)


def test_thresholds_are_checked():
    check_thresholds({"far": 0.0, "repeated_induction": 0.3})
    for wrong, message in (
        ({"copy": 0.5}, "'copy' is no role; choose from induction, repeated_induction"),
        ({"previous": 2.0}, "previous: expected a number from 0 to 1, got 2"),
        ({"previous": math.nan}, "previous: expected a number from 0 to 1, got nan"),
    ):
        with pytest.raises(ValueError, match=message):
            check_thresholds(wrong)
