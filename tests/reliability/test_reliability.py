"""A part of every attack of docs/evidence.md; `make reliability` runs all of them."""

import pytest

from hub_server import CLIENT_WARNINGS
from reliability.outcomes import tally
from reliability.table import ATTACKS, BEGIN, DOCS, END

LONG = {"interrupted_commands", "faulty_store", "faulty_hub", "architectures"}
QUICK = [
    pytest.param(attack, marks=[pytest.mark.long] * (attack.cases.__name__ in LONG))
    for attack in ATTACKS
    if attack.step is not None
]


@pytest.mark.filterwarnings(CLIENT_WARNINGS)
@pytest.mark.parametrize("attack", QUICK, ids=lambda attack: attack.cases.__name__)
def test_no_attack_ends_badly(attack, tmp_path):
    assert attack.step is not None
    found = tally(attack, tmp_path, attack.step)
    assert found.cases >= 1
    assert not found.bad


def test_the_docs_hold_a_table_without_a_bad_end():
    table = DOCS.read_text().split(BEGIN)[1].split(END)[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| ")][1:]
    assert [row[0].strip() for row in rows] == [attack.name for attack in ATTACKS]
    for row in rows:
        cases, *ends = (int(cell.replace(",", "")) for cell in row[1:])
        assert cases == sum(ends) > 0
        assert ends[-1] == 0
