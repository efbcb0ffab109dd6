"""An S3 server on this machine for the real client (s3fs): moto's server, with faults on demand.

The fixture `s3` (conftest.py) gives a new bucket and sets the environment variables of the client:

    from s3_server import S3, error

    def test_it(s3: S3) -> None:
        s3.put("dump/dump.json", b"{}")
        s3.fail("GET", error(500), path="dump.json", times=2)
        assert Store(s3.url("dump")).read("dump.json") == b"{}"

moto runs in a process of its own, once per test process. Requests pass through a small proxy in the
test process, which makes the faults and keeps a log. Child processes inherit the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Event, Lock, Thread
from typing import NamedTuple
from urllib.parse import unquote

import pytest

from planned_faults import Plan
from waiting import PATIENCE

_BUCKETS = count()
_HOP_HEADERS = {"connection", "transfer-encoding", "content-length", "date", "server"}
_UNSET = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE", "HTTP_PROXY", "http_proxy")


@dataclass(frozen=True)
class Fault:
    """A fault of a request; see the functions below."""

    kind: str
    status: int = 0
    body: bytes = b""
    seconds: float = 0.0


def error(status, code="InternalError", message="a planned fault"):
    """An error reply of S3; the request is not carried out."""
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code>'
    return Fault("error", status, f"{body}<Message>{message}</Message></Error>".encode())


expired = error(400, "ExpiredToken", "The provided token has expired.")
"""The reply of S3 to temporary credentials that are too old."""
truncated = Fault("truncated")
"""Half of the body comes, then the connection is closed."""
damaged = Fault("damaged")
"""Half of the object is stored, with the checksum of the whole. The reply is right."""
reset = Fault("reset")
"""The connection is closed without a reply; the request is not carried out."""


def slow(seconds):
    """The right reply, late."""
    return Fault("slow", seconds=seconds)


class Request(NamedTuple):
    """An entry of the log; `range` is the header, and "" without one."""

    method: str
    path: str
    range: str
    status: int


@dataclass
class S3:
    """A bucket, and the faults and the log of the proxy."""

    bucket: str
    endpoint: str
    server: str = ""
    plans: list[Plan] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def url(self, name=""):
        """The URL of a folder or a file in the bucket."""
        return f"s3://{self.bucket}/{name}".rstrip("/")

    def fail(self, method, fault, *, path="", times=None, skip=0):
        """Plan a fault for requests with this method ("*" is any) and this text in the path.

        `times` is how often (None is always), after `skip` requests without a fault. Listings have
        the path `/bucket?list-type=2&prefix=…`.
        """
        plan = Plan(method, fault, path, times, skip)
        self.plans.append(plan)
        return plan

    def heal(self):
        self.plans.clear()

    def put(self, name, content):
        """Write an object, past the proxy."""
        self._direct("PUT", name, content)

    def put_folder(self, folder, prefix):
        """Write all files of a folder as objects, past the proxy."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def get(self, name):
        """The content of an object, past the proxy."""
        return self._direct("GET", name)

    def delete(self, name):
        self._direct("DELETE", name)

    def names(self, prefix=""):
        """The names of all objects that begin with `prefix`, past the proxy."""
        from xml.etree import ElementTree

        names = []
        token = ""
        while True:
            query = f"?list-type=2&prefix={prefix}&max-keys=1000"
            page = ElementTree.fromstring(self._direct("GET", query + token))
            space = {"s3": "http://s3.amazonaws.com/doc/2006-03-01/"}
            names += [str(key.text) for key in page.findall("s3:Contents/s3:Key", space)]
            following = page.findtext("s3:NextContinuationToken", None, space)
            if following is None:
                return names
            token = f"&continuation-token={following}"

    def _direct(self, method, name, body=None):
        connection = HTTPConnection(self.server.removeprefix("http://"), timeout=PATIENCE)
        try:
            path = f"/{self.bucket}{name}" if name.startswith("?") else f"/{self.bucket}/{name}"
            connection.request(method, path, body, {"Authorization": _SIGNATURE})
            reply = connection.getresponse()
            content = reply.read()
        finally:
            connection.close()
        if reply.status >= 300:
            raise AssertionError(f"{method} {path}: {reply.status} {content[:300]!r}")
        return content


_SIGNATURE = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, target):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target.removeprefix("http://")
        self.current = None
        self.lock = Lock()
        self.stopping = Event()

    def handle_error(self, request, client_address):
        """Clients that go away are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy
    bucket: S3 | None

    def log_message(self, *_):
        pass

    def _answer(self):
        self.bucket = self.server.current  # a late answer is not in the log of a later test
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else self._chunks()
        if len(body) < length:  # the client was killed
            self.close_connection = True
            return
        fault = self._fault()
        if fault is not None and fault.kind == "reset":
            self._log(0)
            self.close_connection = True
            return
        if fault is not None and fault.kind == "error":
            self._reply(fault.status, {"Content-Type": "application/xml"}, fault.body)
            return
        if fault is not None and fault.kind == "slow":
            self.server.stopping.wait(fault.seconds)
        if fault is not None and fault.kind == "damaged":
            body = body[: len(body) // 2]
        status, headers, content = self._forward(body)
        truncate = fault is not None and fault.kind == "truncated"
        self._reply(status, headers, content, truncate=truncate)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815

    def _chunks(self):
        """A body in chunks; b"" if there is none."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return b""
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _fault(self):
        with self.server.lock:
            plans = self.server.current.plans if self.server.current else []
            path = unquote(self.path)
            return next((p.fault for p in plans if p.takes(self.command, path)), None)

    def _forward(self, body):
        connection = HTTPConnection(self.server.target, timeout=PATIENCE)
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP_HEADERS}
            if body or self.command in ("PUT", "POST"):
                headers["Content-Length"] = str(len(body))
            connection.request(self.command, self.path, body or None, headers)
            reply = connection.getresponse()
            content = reply.read()
            kept = {k: v for k, v in reply.getheaders() if k.lower() not in _HOP_HEADERS}
            if self.command == "HEAD" and reply.getheader("Content-Length"):
                kept["Content-Length"] = str(reply.getheader("Content-Length"))
            return reply.status, kept, content
        finally:
            connection.close()

    def _reply(self, status, headers, body, *, truncate=False):
        self._log(status)
        with suppress(ConnectionError):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers and status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: len(body) // 2] if truncate else body)
        self.close_connection |= truncate

    def _log(self, status):
        with self.server.lock:
            if self.bucket is not None:
                byte_range = self.headers.get("Range", "")
                entry = Request(self.command, unquote(self.path), byte_range, status)
                self.bucket.requests.append(entry)


@contextmanager
def moto_process():
    """moto's server in a process of its own; gives its address."""
    command = [sys.executable, __file__]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as process:
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


@contextmanager
def s3_environment(endpoint, bucket, folder):
    """A new bucket at an endpoint, and the environment variables of its clients.

    `folder` takes the place of the configuration files of AWS.
    """
    import s3fs

    with pytest.MonkeyPatch.context() as patch:
        for name in _UNSET:
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")  # lasting faults end soon; s3fs repeats some requests
        patch.setenv("AWS_CONFIG_FILE", str(folder / "no-aws-config"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "no-aws-credentials"))
        patch.setenv("NO_PROXY", "127.0.0.1")
        s3fs.S3FileSystem.clear_instance_cache()  # clients of earlier tests
        made = S3(bucket, endpoint, endpoint)
        made._direct("PUT", "")
        yield made
        s3fs.S3FileSystem.clear_instance_cache()


@contextmanager
def running_proxy():
    """The proxy in front of moto's server."""
    with moto_process() as address, _Proxy(address) as proxy:
        thread = Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield proxy
        proxy.stopping.set()
        proxy.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def s3_endpoint():
    """One proxy for all tests of a process."""
    with running_proxy() as proxy:
        yield proxy


@contextmanager
def new_bucket(proxy, folder):
    """A new bucket behind the proxy, and the environment of its clients."""
    endpoint = f"http://127.0.0.1:{proxy.server_port}"
    with s3_environment(endpoint, f"bucket-{next(_BUCKETS)}", folder) as bucket:
        bucket.server = f"http://{proxy.target}"
        proxy.current = bucket
        yield bucket
        proxy.current = None


@pytest.fixture
def s3(s3_endpoint, tmp_path):
    """A new bucket for one test."""
    with new_bucket(s3_endpoint, tmp_path) as bucket:
        yield bucket


@pytest.fixture(scope="module")
def s3_of_file(s3_endpoint, tmp_path_factory):
    """A new bucket for all tests of a file."""
    with new_bucket(s3_endpoint, tmp_path_factory.mktemp("s3")) as bucket:
        yield bucket


def _keep_contents():
    """Keep the bytes of every object in memory. moto reads the whole object for a range of it."""
    from moto.s3.models import FakeKey

    from_file, to_file = FakeKey.value.fget, FakeKey.value.fset

    def read(key):
        if "kept" not in vars(key):
            key.kept = from_file(key)
        return key.kept

    def write(key, content):
        vars(key).pop("kept", None)
        to_file(key, content)

    FakeKey.value = property(read, write)


def _serve():
    """Run moto's server until standard input is closed."""
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    _keep_contents()
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
    with suppress(KeyboardInterrupt):
        while sys.stdin.buffer.read(1):
            time.sleep(0.1)
    server.stop()


if __name__ == "__main__":
    _serve()
