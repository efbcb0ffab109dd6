"""A push with every fault: the branch holds one complete dump, and an error says what to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hub_fault_table import CASES, DOCS, FAULTS, REQUESTS, Faults, in_docs, pushing
from hub_server import CLIENT_WARNINGS, WRITER, running_hub

pytestmark = pytest.mark.filterwarnings(CLIENT_WARNINGS)


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    with running_hub() as hub, pushing(hub):
        yield Faults(hub, tmp_path_factory.mktemp("dumps"))


@pytest.mark.parametrize("request_kind", REQUESTS)
def test_a_push_succeeds_or_ends_with_a_clear_error(
    faults: Faults, request_kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    documented = in_docs(DOCS.read_text(encoding="utf-8"))
    for fault in FAULTS:
        outcome = faults.outcome(request_kind, fault)
        assert outcome == documented[request_kind, fault], (
            f"{fault}: run python scripts/hub_fault_table.py"
        )
    assert WRITER not in caplog.text


def test_a_push_succeeds_after_every_transient_fault() -> None:
    documented = in_docs(DOCS.read_text(encoding="utf-8"))
    transient = {"500 once", "429 once", "reset before", "reset after", "truncated"}
    assert {documented[case] for case in CASES if case[1] in transient} == {"done"}
    assert set(FAULTS) > transient
