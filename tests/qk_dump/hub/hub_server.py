"""A Hugging Face Hub on this machine for the real client: datasets, and faults on demand.

with running_hub() as hub:
    hub.fail("commit", reset_after)
    hub.api().create_repo("me/data", repo_type="dataset")
    assert hub.branch("me/data", "main")
    subprocess.run([...], env=hub.environment)
"""

from __future__ import annotations

import json
import os
import socket
import struct
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch
from urllib.parse import parse_qsl, unquote

import pytest

from hub_endpoints import Call, Endpoints, Reply, error_reply, route
from hub_store import Account, HubError, HubStore
from planned_faults import Plan

WRITER, READER, STRANGER = "hf_writer", "hf_reader", "hf_stranger"
ACCOUNTS = {WRITER: Account("me"), READER: Account("me", write=False), STRANGER: Account("other")}
CLIENT_WARNINGS = "ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning"
"""The client's uploads of LFS files warn; `pytest.mark.filterwarnings` takes this."""


@dataclass(frozen=True)
class Fault:
    """A fault of a request; see the constants and functions below."""

    kind: str
    reply: Reply = field(default_factory=Reply)
    takes_effect: bool = True
    seconds: float = 0.0
    change: Callable[[Reply], Reply] | None = None


reset_before = Fault("reset", takes_effect=False)
"""The connection is reset before the request takes effect."""
reset_after = Fault("reset")
"""The request takes effect, then the connection is reset: the reply is lost."""
truncated = Fault("truncated")
"""Half of the reply comes, then the connection is closed."""
wrong_bytes = Fault("wrong_bytes")
"""The right number of bytes with wrong values: in the request for `lfs_put`, else in the reply."""


def changed_json(change):
    """The right answer with changed JSON."""

    def changed(reply):
        return replace(reply, body=json.dumps(change(json.loads(reply.body))).encode())

    return Fault("changed", change=changed)


def status(code, headers=None, *, body=None):
    """An answer with this status; the request is not carried out."""
    message = "Invalid credentials in Authorization header" if code == 401 else f"fault {code}"
    content = json.dumps({"error": message}).encode() if body is None else body
    reply = Reply(code, content, {"X-Error-Message": message, **(headers or {})})
    return Fault("status", reply=reply, takes_effect=False)


def slow(seconds):
    """The right answer, late."""
    return Fault("slow", seconds=seconds)


class Request(NamedTuple):
    """An entry of the log; `status` 0 means that the connection was reset."""

    endpoint: str
    method: str
    path: str
    bytes_in: int
    status: int


class HubServer(ThreadingHTTPServer):
    """The server; `running_hub` makes one and starts it."""

    request_queue_size = 128
    daemon_threads = False

    def __init__(self, store, home, page_size=1000):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.store = store
        self.endpoints = Endpoints(store, self.endpoint, page_size)
        self.environment = environment(self.endpoint, home)
        self.log = []
        self.errors = []
        self.stopping = Event()
        self._plans = []
        self._connections = set()
        self._lock = Lock()

    def fail(self, endpoint, fault, *, path="", times=1, skip=0):
        """Plan a fault for the next `times` requests (None: all) of an endpoint ("*": any).

        `path` must be part of the request's path. The first `skip` matching requests succeed.
        """
        plan = Plan(endpoint, fault, path, times, skip)
        with self._lock:
            self._plans.append(plan)
        return plan

    def heal(self):
        with self._lock:
            self._plans.clear()

    def fault(self, endpoint, path):
        """The fault for this request."""
        with self._lock:
            return next((plan.fault for plan in self._plans if plan.takes(endpoint, path)), None)

    def requests(self, *endpoints):
        """The log, or the part of it for these endpoints."""
        return [entry for entry in self.log if not endpoints or entry.endpoint in endpoints]

    def branch(self, repo, name="main"):
        """The files at the head of a branch."""
        return self.store.repos[repo].head(name).files

    def branches(self, repo):
        """The branches, each with its commit id."""
        return dict(self.store.repos[repo].branches)

    def commits(self, repo, branch="main"):
        """The commits of a branch, newest first."""
        return list(self.store.repos[repo].history(branch))

    def api(self, token=WRITER):
        """The real client for this server; `token=False` means no token."""
        from huggingface_hub import HfApi

        return HfApi(endpoint=self.endpoint, token=token)

    def process_request(self, request, client_address):
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request, client_address):
        """Record errors, except for connections that the client closed."""
        problem = traceback.format_exc()
        if "ConnectionResetError" not in problem and "BrokenPipeError" not in problem:
            self.errors.append(problem)

    def close(self):
        self.stopping.set()
        self.shutdown()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HubServer

    def log_message(self, format, *args):  # noqa: A002
        """Print nothing: requests are in `HubServer.log`."""

    def serve(self):
        body = self._body()
        raw, _, query = self.path.partition("?")
        where = route(self.command, [unquote(word) for word in raw.strip("/").split("/")])
        fault = self.server.fault(where.endpoint, unquote(raw))
        if fault and fault.kind == "slow":
            self.server.stopping.wait(fault.seconds)
        if fault and fault.kind == "wrong_bytes" and where.endpoint == "lfs_put":
            body = _other_bytes(body)
        headers = {name.lower(): value for name, value in self.headers.items()}
        call = Call(where, self.command, raw, dict(parse_qsl(query)), headers, body)
        reply = None if fault and not fault.takes_effect else self._answer(call)
        self._finish(where, len(body), _faulty(reply, fault, where.endpoint), fault)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = serve  # noqa: N815

    def _answer(self, call):
        try:
            return self.server.endpoints.answer(call)
        except HubError as error:
            return error_reply(error)
        except Exception:
            self.server.errors.append(traceback.format_exc())
            return Reply(500, traceback.format_exc().encode())

    def _finish(self, where, received, reply, fault):
        head, body = (b"", b"") if reply is None else self._bytes(reply)
        if fault and fault.kind == "truncated":
            head, body = (head, body[: len(body) // 2]) if body else (head[: len(head) // 2], b"")
            self.close_connection = True
        path = unquote(self.path.partition("?")[0])
        code = reply.status if reply else 0
        self.server.log.append(Request(where.endpoint, self.command, path, received, code))
        if reply is None:
            self._reset()
        else:
            self.wfile.write(head + body)

    def _bytes(self, reply):
        headers = {"Content-Length": len(reply.body), **reply.headers}
        lines = [f"HTTP/1.1 {reply.status} {responses.get(reply.status, '')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        return head, b"" if self.command == "HEAD" else reply.body

    def _reset(self):
        """End the connection with RST, without flushing."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())

    def _body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self._read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
            chunks.append(self._read(size))
            self.rfile.readline()
        if not self.rfile.readline():
            raise ConnectionResetError("the client went away")
        return b"".join(chunks)

    def _read(self, size):
        """Read `size` bytes; an incomplete request must not take effect."""
        data = self.rfile.read(size)
        if len(data) < size:
            raise ConnectionResetError("the client went away")
        return data


def _faulty(reply, fault, endpoint):
    """The reply after the fault; None for no reply."""
    if fault is None:
        return reply
    if fault.kind == "reset":
        return None
    if fault.kind == "status":
        return fault.reply
    if fault.change and reply:
        return fault.change(reply)
    if fault.kind == "wrong_bytes" and reply and endpoint != "lfs_put":
        return replace(reply, body=_other_bytes(reply.body, only_one=endpoint == "resolve_get"))
    return reply


def _other_bytes(data, only_one=True):
    """Wrong bytes: one byte of a file, so that only a checksum differs, or all bytes of JSON."""
    first = len(data) // 2 if only_one else 0
    end = first + 1 if only_one else len(data)
    return data[:first] + bytes(byte ^ 1 for byte in data[first:end]) + data[end:]


def environment(endpoint, home):
    """Environment of a process that uses this server as the Hub, without the caller's settings."""
    kept = {name: value for name, value in os.environ.items() if not _is_hub_setting(name)}
    return kept | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_TOKEN": WRITER,
        "HF_HUB_DISABLE_XET": "1",
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }


def _is_hub_setting(name):
    return name.upper().startswith(("HF_", "HUGGING")) or name.upper().endswith("_PROXY")


@contextmanager
def running_hub(*, page_size=1000):
    """A Hub that serves until the block ends.

    Inside the block the client of this process uses no Xet, no proxies and no token of the caller.
    """
    with tempfile.TemporaryDirectory() as home, _client_here(Path(home)):
        server = HubServer(HubStore(ACCOUNTS), Path(home), page_size)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.close()
            thread.join()
        assert not server.errors, "the test server itself failed:\n" + "\n".join(server.errors)


@contextmanager
def _client_here(home):
    from huggingface_hub import close_session, constants

    kept = {name: value for name, value in os.environ.items() if not _is_hub_setting(name)}
    token_file = patch.object(constants, "HF_TOKEN_PATH", str(home / "token"))
    no_xet = patch.object(constants, "HF_HUB_DISABLE_XET", True)
    close_session()
    with patch.dict(os.environ, kept, clear=True), token_file, no_xet:
        try:
            yield
        finally:
            close_session()


@contextmanager
def no_waiting():
    """Record the client's waits between retries without waiting."""
    waits = []
    clock = SimpleNamespace(**{**vars(time), "sleep": waits.append})
    http, download = "huggingface_hub.utils._http.time", "huggingface_hub.file_download.time"
    with patch(http, clock), patch(download, clock):
        yield waits


@pytest.fixture
def hub():
    """An empty Hub."""
    with running_hub() as server:
        yield server
