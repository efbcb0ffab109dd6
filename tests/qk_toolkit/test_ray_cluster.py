"""Messages when a Ray cluster cannot be used."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from qk_toolkit import ray_cluster
from qk_toolkit.errors import ConfigError
from qk_toolkit.ray_cluster import ClusterLostError, connect


def failing(**_: Any) -> None:
    raise RuntimeError("no room")


RAY = SimpleNamespace(is_initialized=lambda: False, init=failing)


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "ray://127.0.0.1:{}/"])
def test_an_address_where_nothing_answers_is_refused_at_once(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = form.format(server.getsockname()[1])
        with pytest.raises(ConfigError, match=r"the connection failed \(.*no room.*RAY_AUTH_MODE"):
            connect(RAY, address, 1, "heads")  # something answers, so Ray is asked
    with pytest.raises(ConfigError, match=r"ray_address: .*: no cluster can .*[Rr]efused"):
        connect(RAY, address, 1, "heads")


def test_other_failures_name_their_reason() -> None:
    with pytest.raises(ConfigError, match=r"cluster cannot be started on this machine \(.*no room"):
        connect(RAY, None, 1, "heads")
    with pytest.raises(ConfigError, match="ray_address: auto: the connection failed"):
        connect(RAY, "auto", 1, "heads")
    with pytest.raises(ConfigError, match="99999999: no cluster can be reached"):
        connect(RAY, "127.0.0.1:99999999", 1, "heads")


def test_a_head_that_answers_again_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_SECONDS_BETWEEN_CHECKS", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
        address = f"ray://127.0.0.1:{place[1]}"
        connection = connect(SimpleNamespace(is_initialized=lambda: True), address, 1, "heads")
        assert not connection.was_interrupted()
    restarted = []

    def sleep(_: float) -> None:  # the head restarts while the connection waits
        restarted.append(socket.create_server(place))

    monkeypatch.setattr(ray_cluster.time, "sleep", sleep)
    connection._next_check = 0.0
    connection.check()
    assert not connection.was_interrupted()
    restarted.pop().close()
    monkeypatch.setattr(ray_cluster, "_SECONDS_WITHOUT_ANSWER", 0.0)
    with pytest.raises(ClusterLostError, match=f"Ray cluster at {address}: the connection was lo"):
        connection.was_interrupted()
