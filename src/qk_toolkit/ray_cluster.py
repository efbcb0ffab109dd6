"""Connection to a Ray cluster. Ray is imported when it is first used."""

from __future__ import annotations

import socket
from typing import Any

from qk_toolkit.errors import ConfigError, in_short

_SECONDS_TO_ANSWER = 5.0


def import_ray() -> Any:
    """The module `ray`."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ConfigError(
            "engine: ray is not installed; install it with pip install 'attention-plasticity[ray]'"
        ) from error
    return ray


def connect(ray: Any, address: str | None, num_cpus: int | None = None) -> bool:
    """Connect to the cluster at `address`, or start one on this machine with `num_cpus`.

    Returns whether to call `ray.shutdown` at the end: not if the caller was connected before.
    """
    if ray.is_initialized():
        return False
    if address is not None:
        _require_answer(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address is None:
        options |= {"num_cpus": num_cpus, "include_dashboard": False}
    try:
        ray.init(address=address or "local", **options)
    except Exception as error:  # Ray has no common class for these errors
        if address is None:
            raise ConfigError(
                f"engine: ray: a cluster cannot be started on this machine ({in_short(error)})"
            ) from error
        raise ConfigError(
            f"ray_address: {address}: the connection failed ({in_short(error)}); if the cluster is "
            "protected by a token, set RAY_AUTH_MODE=token"
        ) from error
    return True


def _require_answer(address: str) -> None:
    """Refuse HOST:PORT where nothing answers. Ray itself would try again for minutes."""
    host, _, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if not host or not port.isdecimal():
        return  # another form, such as auto
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_ANSWER):
            pass
    except (OSError, OverflowError) as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str, error: Exception) -> ConfigError:
    return ConfigError(f"ray_address: {address}: no cluster can be reached ({in_short(error)})")
