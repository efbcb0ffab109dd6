"""Connection to a Ray cluster. Ray is imported when it is first used."""

from __future__ import annotations

import socket
from typing import Any

from qk_toolkit.errors import ConfigError, ToolkitError, in_short, not_installed

_SECONDS_TO_ANSWER = 5.0
_SHORT_REASONS = {
    "NodeDiedError": "its node died",
    "OutOfMemoryError": "Ray ended its process because memory was short",
}


class ClusterLostError(ToolkitError):
    """The connection to a Ray cluster was lost. Earlier results are intact."""


def import_ray() -> Any:
    """The module `ray`."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise not_installed("Ray", "ray") from error
    return ray


def connect(ray: Any, address: str | None, num_cpus: int | None, work: str) -> Connection:
    """Connect to the cluster at `address`, or start one on this machine with `num_cpus`.

    A caller that is connected already stays connected. `work` is for messages: `heads` or `texts`.
    """
    if ray.is_initialized():
        return Connection(ray, address, work, is_own=False)
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
                f"Ray: a cluster cannot be started on this machine ({in_short(error)})"
            ) from error
        raise ConfigError(
            f"Ray cluster at {address}: the connection failed ({in_short(error)}); if it is "
            "protected by a token, set RAY_AUTH_MODE=token"
        ) from error
    return Connection(ray, address, work, is_own=True)


class Connection:
    """A connection to a cluster."""

    def __init__(self, ray: Any, address: str | None, work: str, *, is_own: bool) -> None:
        self._ray = ray
        self._work = work
        self._is_own = is_own
        self.address = address or "this machine"

    def lost(self, reason: str) -> ClusterLostError:
        """The error to raise if the cluster is gone."""
        return ClusterLostError(
            f"Ray cluster at {self.address}: the connection was lost ({reason}). Finished "
            f"{self._work} are kept; run the same command again to continue."
        )

    def close(self) -> None:
        """Leave the cluster, unless the caller was connected before."""
        if self._is_own:
            self._ray.shutdown()


def death_words(error: BaseException) -> str:
    """Why a worker or an actor died, in a few words."""
    kind, text = type(error).__name__, " ".join(str(error).split())
    if kind in _SHORT_REASONS:
        return _SHORT_REASONS[kind]
    if "node" in text and kind == "ActorDiedError" and "worker process has died" not in text:
        return _SHORT_REASONS["NodeDiedError"]
    if kind in ("WorkerCrashedError", "ActorDiedError", "ActorUnavailableError"):
        return "its process died (killed, or memory was short)"
    return in_short(error)


def _require_answer(address: str) -> None:
    """Refuse HOST:PORT where nothing answers. Ray itself would try again for minutes."""
    place = address.rpartition("://")[2].partition("/")[0]
    if not place.rpartition(":")[0] or not place.rpartition(":")[2].isdecimal():
        return  # another form, such as auto
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_ANSWER):
            pass
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"Ray cluster at {address}: no cluster can be reached ({in_short(error)})"
        ) from error
