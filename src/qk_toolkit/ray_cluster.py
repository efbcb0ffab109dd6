"""Connection to a Ray cluster. Ray is imported when it is first used."""

from __future__ import annotations

import socket
import time
from typing import Any

from qk_toolkit.errors import ConfigError, ToolkitError, in_short, not_installed

_SECONDS_TO_ANSWER = 5.0
_SECONDS_BETWEEN_CHECKS = 2.0
_SECONDS_WITHOUT_ANSWER = 30.0  # the head may restart; after 60 seconds Ray ends this process
_HEAD, _NODE = "the head of the cluster", "the node of this command"
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
        raise not_installed("engine: ray", "ray") from error
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
    _print_messages_of(ray, False)
    try:
        ray.init(address=address or "local", **options)
    except Exception as error:  # Ray has no common class for these errors
        _print_messages_of(ray, True)
        if address is None:
            raise ConfigError(
                f"engine: ray: a cluster cannot be started on this machine ({in_short(error)})"
            ) from error
        raise ConfigError(
            f"ray_address: {address}: the connection failed ({in_short(error)}); if the cluster is "
            "protected by a token, set RAY_AUTH_MODE=token"
        ) from error
    return Connection(ray, address, work, is_own=True)


class Connection:
    """A connection to a cluster, which notices when the cluster no longer answers.

    Calls of Ray wait without end after the death of the node of this command. After the death of
    the head they end the process.
    """

    def __init__(self, ray: Any, address: str | None, work: str, *, is_own: bool) -> None:
        self._ray = ray
        self._work = work
        self._is_own = is_own
        self._services = _services(ray, address)
        self._next_check = 0.0
        self.address = address if "://" in (address or "") else self._services.get(_HEAD, "ray://")

    def check(self) -> None:
        """Raise a `ClusterLostError` if the cluster does not answer; at most every two seconds."""
        if time.monotonic() >= self._next_check:
            self.was_interrupted()

    def was_interrupted(self) -> bool:
        """Whether the cluster did not answer; it answers when this method returns.

        Raises a `ClusterLostError` if the cluster does not answer for half a minute, or if the node
        of this command died.
        """
        began, interrupted = time.monotonic(), False
        while (silent := self._silent()) is not None:
            name, error = silent
            waited = time.monotonic() - began
            is_dead = name == _NODE and isinstance(error, ConnectionRefusedError)
            if is_dead or waited >= _SECONDS_WITHOUT_ANSWER:
                raise self.lost(f"{name} does not answer") from error
            interrupted = True
            time.sleep(_SECONDS_BETWEEN_CHECKS / 2)
        self._next_check = time.monotonic() + _SECONDS_BETWEEN_CHECKS
        return interrupted

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
            _print_messages_of(self._ray, True)

    def _silent(self) -> tuple[str, OSError] | None:
        """A service that does not answer."""
        for name, address in self._services.items():
            try:
                _call(address)
            except OSError as error:
                return name, error
        return None


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


def _print_messages_of(ray: Any, wanted: bool) -> None:
    """Let Ray print messages about its services, such as parts of their logs, or not.

    Ray has no setting for this. Its logs are in /tmp/ray in any case.
    """
    worker: Any = getattr(getattr(ray, "_private", None), "worker", None)
    if hasattr(worker, "_worker_logs_enabled"):
        worker._worker_logs_enabled = wanted


def _services(ray: Any, address: str | None) -> dict[str, str]:
    """What must answer, and its HOST:PORT."""
    if address is not None and "://" in address:  # a server that does all else
        return {_HEAD: address.rpartition("://")[2].partition("/")[0]}
    context = ray.get_runtime_context()
    if ray.util.client.ray.is_connected():  # addresses inside the cluster may not be reachable
        return {}
    found = {_HEAD: str(context.gcs_address)}
    for node in ray.nodes():
        if node["NodeID"] == context.get_node_id():
            found[_NODE] = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    return found


def _require_answer(address: str) -> None:
    """Refuse HOST:PORT where nothing answers. Ray itself would try again for minutes."""
    place = address.rpartition("://")[2].partition("/")[0]
    if not place.rpartition(":")[0] or not place.rpartition(":")[2].isdecimal():
        return  # another form, such as auto
    try:
        _call(place)
    except OSError as error:
        raise ConfigError(
            f"ray_address: {address}: no cluster can be reached ({in_short(error)})"
        ) from error


def _call(place: str) -> None:
    """Open a connection to HOST:PORT and close it."""
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_ANSWER):
            pass
    except OverflowError as error:
        raise OSError(str(error)) from error
