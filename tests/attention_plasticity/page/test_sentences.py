"""The text that says what a head does: every rule, and the numbers in it."""

import math

import pytest

from attention_plasticity.metrics import ROLES
from attention_plasticity.page.sentences import Measured, head_sentence, order_words
from attention_plasticity.roles import NAMES
from qk_toolkit.formatting import with_half

UNKNOWN = Measured(math.nan)
THRESHOLDS = {  # as in the method
    **{"induction_excess": 0.2, "duplicate_excess": 0.2, "previous_mass": 0.4, "self_mass": 0.4},
    **{"local_mass": 0.4, "far_mass": 0.4, "sink_rate": 0.5},
    **{"repeated_induction": 0.4, "repeated_duplicate": 0.4},
}
NAMES_OF_SCORES = [metric.column for metric in ROLES.columns if metric.error]


def sentence(role, likely=None, **scores):
    known = dict.fromkeys(NAMES_OF_SCORES, UNKNOWN) | scores
    return head_sentence(role, likely or role, known, UNKNOWN, UNKNOWN, 128, THRESHOLDS)


def test_unsure_heads_say_so():
    found = sentence("unsure", "induction", repeated_induction=Measured(0.41, 0.03))
    assert found.startswith(
        "Unsure, likely an induction head: the 95 % interval of “induction score” contains its "
        "threshold."
    )
    assert sentence("unsure", "previous", previous_mass=Measured(0.5)).startswith(
        "Unsure: too few texts for errors; likely a previous-token head."
    )


@pytest.mark.parametrize(
    ("aligned", "phase", "said"),
    [
        ((0.2, 0.01), (0.6, 0.01), "distance changes the order of two keys more than the content"),
        ((0.6, 0.01), (0.2, 0.01), "the content of the query changes the order of two keys more"),
        ((0.6, math.nan), (0.2, math.nan), "the content of the query changes the order of two"),
        ((0.40, 0.03), (0.44, 0.02), "distance and the content of the query change the order"),
        ((0.40, 0.01), (0.44, 0.02), "distance changes the order of two keys more than"),
        ((0.20, 0.01), (0.04, 0.01), "two keys mostly keep their order, whatever the query is"),
    ],
)
def test_what_decides_the_order_of_keys(aligned, phase, said):
    found = order_words(Measured(*aligned), Measured(*phase), 128)
    assert found.startswith(f"Inside a bin of 128 tokens, {said}")
    if math.isfinite(aligned[1]):
        assert f"RoPE-aligned plasticity {with_half(*aligned)})." in found
    else:
        assert found.endswith("(rotary phase 0.20, RoPE-aligned plasticity 0.60).")


@pytest.mark.parametrize("likely", NAMES)
@pytest.mark.parametrize("unsure", [False, True])
def test_every_role_has_a_sentence(likely, unsure):
    scores = dict.fromkeys(NAMES_OF_SCORES, Measured(0.25, 0.02))
    found = head_sentence(
        "unsure" if unsure else likely,
        likely,
        scores,
        Measured(0.4),
        Measured(0.1),
        None,
        THRESHOLDS,
    )
    assert found.split(".")[0].endswith("head") or unsure or likely == "mixed"
    assert "nan" not in found
    assert found.count("  ") == 0
