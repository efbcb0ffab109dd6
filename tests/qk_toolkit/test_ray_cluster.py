"""Messages when a Ray cluster cannot be used."""

import socket
from types import SimpleNamespace

import pytest

from qk_toolkit.errors import ConfigError
from qk_toolkit.ray_cluster import connect


def failing(**_):
    raise RuntimeError("no room")


RAY = SimpleNamespace(is_initialized=lambda: False, init=failing)


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "ray://127.0.0.1:{}/"])
def test_an_address_where_nothing_answers_is_refused_at_once(form):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = form.format(server.getsockname()[1])
        with pytest.raises(ConfigError, match=r"the connection failed \(.*no room.*RAY_AUTH_MODE"):
            connect(RAY, address, 1, "heads")  # something answers, so Ray is asked
    with pytest.raises(ConfigError, match=r"Ray cluster at .*: no cluster can .*[Rr]efused"):
        connect(RAY, address, 1, "heads")


def test_other_failures_name_their_reason():
    with pytest.raises(ConfigError, match=r"cluster cannot be started on this machine \(.*no room"):
        connect(RAY, None, 1, "heads")
    with pytest.raises(ConfigError, match="Ray cluster at auto: the connection failed"):
        connect(RAY, "auto", 1, "heads")
    with pytest.raises(ConfigError, match="99999999: no cluster can be reached"):
        connect(RAY, "127.0.0.1:99999999", 1, "heads")
