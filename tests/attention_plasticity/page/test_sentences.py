"""The text that says what a head does: every rule, and the numbers in it."""

from __future__ import annotations

import math

import pytest

from attention_plasticity.metrics import ROLES
from attention_plasticity.page.sentences import (
    Measured,
    head_sentence,
    order_words,
    percent,
)
from attention_plasticity.roles import NAMES
from qk_toolkit.formatting import with_half

UNKNOWN = Measured(math.nan)
THRESHOLDS = {  # as in the method
    **{"induction_excess": 0.2, "duplicate_excess": 0.2, "previous_mass": 0.4, "self_mass": 0.4},
    **{"local_mass": 0.4, "far_mass": 0.4, "sink_rate": 0.5},
    **{"repeated_induction": 0.4, "repeated_duplicate": 0.4},
}
NAMES_OF_SCORES = [metric.column for metric in ROLES.columns if metric.error]


def sentence(role: str, likely: str | None = None, **scores: Measured) -> str:
    known = dict.fromkeys(NAMES_OF_SCORES, UNKNOWN) | scores
    return head_sentence(role, likely or role, known, UNKNOWN, UNKNOWN, 256, 128, THRESHOLDS)


SHARE, CHANCE = Measured(0.714, 0.021), Measured(0.01, 0.001)
REPEATED = Measured(0.8, 0.03)


@pytest.mark.parametrize(
    ("role", "scores", "said"),
    [
        ("previous", {"previous_mass": SHARE}, "on the previous token."),
        ("self", {"self_mass": SHARE}, "on its own token."),
        ("local", {"local_mass": SHARE}, "on tokens 2 to 7 before the query."),
        ("far", {"far_mass": SHARE}, "on tokens 256 or more before the query, without the first"),
        ("sink", {"sink_rate": SHARE}, "71.4 ± 2.1 % of the queries put more than 30 %"),
        (
            "induction",
            {"induction_mass": SHARE, "induction_chance": CHANCE},
            "71.4 ± 2.1 % of the attention is on tokens that followed it (1.00 ± 0.10 % with",
        ),
        (
            "duplicate",
            {"duplicate_mass": SHARE, "duplicate_chance": CHANCE},
            "71.4 ± 2.1 % of the attention is on its earlier occurrences (1.00 ± 0.10 % with",
        ),
        (
            "induction",  # repeated tokens come before texts
            {"induction_mass": SHARE, "repeated_induction": REPEATED},
            "80.0 ± 3.0 % of its attention on the token after the first occurrence of its token.",
        ),
        (
            "duplicate",
            {"duplicate_mass": SHARE, "repeated_duplicate": REPEATED},
            "80.0 ± 3.0 % of its attention on the first occurrence of its token.",
        ),
    ],
)
def test_the_score_of_the_role_is_told_with_its_interval(
    role: str, scores: dict[str, Measured], said: str
) -> None:
    found = sentence(role, **scores)
    assert said in found
    if len(scores) == 1 and role != "sink":
        assert "head. It puts 71.4 ± 2.1 % of its attention on " in found


def test_unsure_heads_say_so() -> None:
    found = sentence("unsure", "induction", repeated_induction=Measured(0.41, 0.03))
    assert found.startswith(
        "Unsure, likely an induction head: the 95 % interval of “induction score” contains its "
        "threshold. "
    )
    assert "41.0 ± 3.0 %" in found
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
def test_what_decides_the_order_of_keys(
    aligned: tuple[float, float], phase: tuple[float, float], said: str
) -> None:
    found = order_words(Measured(*aligned), Measured(*phase), 128)
    assert found.startswith(f"Inside a bin of 128 tokens, {said}")
    if math.isfinite(aligned[1]):
        assert f"RoPE-aligned plasticity {with_half(*aligned)})." in found
    else:
        assert found.endswith("(rotary phase 0.20, RoPE-aligned plasticity 0.60).")


def test_percents_have_the_digits_of_their_interval() -> None:
    assert percent(Measured(0.7149, 0.0312)) == "71.5 ± 3.1 %"
    assert percent(Measured(0.7149, 0.0031)) == "71.49 ± 0.31 %"
    assert percent(Measured(0.7149)) == "71 %"


@pytest.mark.parametrize("likely", NAMES)
@pytest.mark.parametrize("unsure", [False, True])
def test_every_role_has_a_sentence(likely: str, unsure: bool) -> None:
    scores = dict.fromkeys(NAMES_OF_SCORES, Measured(0.25, 0.02))
    found = head_sentence(
        "unsure" if unsure else likely,
        likely,
        scores,
        Measured(0.4),
        Measured(0.1),
        None,
        None,
        THRESHOLDS,
    )
    assert "25.0 ± 2.0 %" in found
    assert "nan" not in found
    assert found.count("  ") == 0
