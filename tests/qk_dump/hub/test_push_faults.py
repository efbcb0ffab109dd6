"""Whatever goes wrong in a push: one dump whole on the branch, one clear line, and a way on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hub_fault_table import CASES, DOCS, FAULTS, Faults, in_docs, pushing
from hub_server import CLIENT_WARNINGS, WRITER, running_hub

pytestmark = pytest.mark.filterwarnings(CLIENT_WARNINGS)


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    with running_hub() as hub, pushing(hub):
        yield Faults(hub, tmp_path_factory.mktemp("dumps"))


@pytest.mark.parametrize(("request_kind", "fault"), CASES)
def test_a_push_ends_right_or_with_a_clear_error(
    faults: Faults, request_kind: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    outcome = faults.outcome(request_kind, fault)
    assert outcome == in_docs(DOCS.read_text(encoding="utf-8"))[request_kind, fault], (
        "run python tests/hub_fault_table.py"
    )
    assert WRITER not in caplog.text


def test_what_passes_by_itself_needs_no_person() -> None:
    told = in_docs(DOCS.read_text(encoding="utf-8"))
    passing = {"500 once", "429 once", "reset before", "reset after", "truncated"}
    assert {told[case] for case in CASES if case[1] in passing} == {"done"}
    assert set(FAULTS) > passing
