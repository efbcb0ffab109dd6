"""Object stores and a Hub that fail once or always, with the real clients and local servers."""

import tempfile
from pathlib import Path

import hub_server
from dumps import make_dump
from hubs import REPO, TINY, client_of, files_of, small_dump, upload
from qk_dump.hub.fetch import fetch_dump
from qk_toolkit.errors import ToolkitError
from reliability.damaged_files import analyze, judged, tables
from reliability.outcomes import Outcome
from s3_server import damaged, error, expired, new_bucket, reset, running_proxy, truncated

STORE = {
    "500": error(500),
    "403": error(403, "AccessDenied"),
    "expired credentials": expired,
    "half of an answer": truncated,
    "wrong bytes": damaged,
    "a lost connection": reset,
}
HUB = {
    "503": hub_server.status(503),
    "403": hub_server.status(403),
    "too many requests": hub_server.status(429, {"Retry-After": "0"}),
    "half of an answer": hub_server.truncated,
    "wrong bytes": hub_server.wrong_bytes,
    "a lost request": hub_server.reset_before,
    "a lost reply": hub_server.reset_after,
}


def _cases(faults, places):
    """(name, fault, place, how often) of every case."""
    for name, fault in faults.items():
        for place in places:
            for times in (1, None):
                yield f"{place}: {name} {'once' if times else 'always'}", fault, place, times


def faulty_store(folder, step):
    """A dump at a URL: the tables of the dump on the disk, or a refusal."""
    dump = make_dump(folder / "dump", layers=1, q_heads=2, k_heads=1, n=240, d=4)
    assert analyze(dump, folder / "whole").code == 0
    expected = tables(folder / "whole")
    places = ("list-type", "dump.json", "l00h01q/data.parquet", "l00h00k/data.parquet")
    with running_proxy() as proxy, new_bucket(proxy, folder) as s3:
        for path, content in files_of(dump).items():
            s3.put(f"dump/{path}", content)
        for name, fault, place, times in [*_cases(STORE, places)][::step]:
            s3.fail("GET", fault, path=place, times=times)
            with tempfile.TemporaryDirectory() as out:
                ended = analyze(s3.url("dump"), Path(out))
                yield name, judged(ended, tables(Path(out)), expected)
            s3.heal()


def faulty_hub(folder, step):
    """A dump on the Hub is fetched: the same files, or a refusal."""
    dump = small_dump(folder / "dump")
    places = ("info", "tree", "resolve_head", "resolve_get")
    with hub_server.running_hub() as hub, client_of(hub, folder / "unused"):
        upload(hub, dump)
        assert REPO in hub.store.repos
        for name, fault, place, times in [*_cases(HUB, places)][::step]:
            hub.fail(place, fault, times=times)
            with tempfile.TemporaryDirectory() as cache:
                yield name, _fetched(dump, cache)
            hub.heal()


def _fetched(dump, cache):
    try:
        found = fetch_dump(TINY, cache_dir=cache)
    except ToolkitError as refusal:
        return Outcome.TRACEBACK if "\n" in str(refusal) else Outcome.REFUSED
    except Exception:
        return Outcome.TRACEBACK
    return Outcome.UNHARMED if files_of(found.folder) == files_of(dump) else Outcome.WRONG
