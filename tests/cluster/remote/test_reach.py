"""An address that leads nowhere is one line, soon."""

import json
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
import ray
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

from cluster.remote import reach
from cluster.remote.reach import require_cluster
from cluster.session import SessionConfig, session
from coa.errors import UserError

PYTHON = ".".join(map(str, sys.version_info[:3]))


class Control(gcs_service_pb2_grpc.InternalKVGcsServiceServicer):
    """A cluster's control service, as far as it says of itself which versions it runs."""

    def __init__(self, ray_version: str, *, refuses: bool = False) -> None:
        self.metadata = {"ray_version": ray_version, "python_version": PYTHON}
        self.refuses = refuses

    def InternalKVGet(self, request: Any, context: Any) -> Any:
        if self.refuses:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken: no token")
        assert (request.namespace, request.key) == (b"cluster", b"CLUSTER_METADATA")
        messages: Any = gcs_service_pb2
        return messages.InternalKVGetReply(value=json.dumps(self.metadata).encode())


@contextmanager
def cluster(control: Control) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    gcs_service_pb2_grpc.add_InternalKVGcsServiceServicer_to_server(control, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def refusal(address: str) -> str:
    with pytest.raises(UserError) as refused:
        require_cluster(address)
    return str(refused.value)


@pytest.mark.parametrize("address", ["foo", "10.0.0.1", "http://head:8265", "host:port", "a b:6379", "ray://"])
def test_a_malformed_address_is_shown_a_right_one(address: str) -> None:
    said = f"the cluster's address {address!r} (RAY_ADDRESS) is not host:port, such as 10.0.0.7:6379"
    assert refusal(address) == said


def test_nobody_at_the_address_is_told_before_ray_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.init", lambda **_: pytest.fail("Ray was started"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", dead)
    with pytest.raises(UserError) as refused, session(SessionConfig()):
        pass
    assert str(refused.value) == f"no Ray cluster answers at {dead} (RAY_ADDRESS): Connection refused"
    assert refusal(f"ray://{dead}").endswith("Connection refused")
    assert "no Ray cluster answers at 127.0.0.1:99999" in refusal("127.0.0.1:99999")


def test_one_that_listens_and_says_nothing_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "ANSWER_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert refusal(address).startswith(f"no Ray cluster answers at {address} (RAY_ADDRESS): the port is open, but")


def test_a_cluster_of_another_version_is_named_with_both_versions() -> None:
    with cluster(Control("2.9.0")) as address:
        assert refusal(address) == (
            f"the cluster at {address} (RAY_ADDRESS) runs Ray 2.9.0 and Python {PYTHON}, and here are Ray "
            f"{ray.__version__} and Python {PYTHON}: they have to be the same"
        )


def test_a_cluster_of_ones_own_version_may_be_joined_and_one_that_asks_for_a_token_says_so() -> None:
    with cluster(Control(ray.__version__)) as address:
        require_cluster(address)
    with cluster(Control(ray.__version__, refuses=True)) as address:
        assert "it asks for another token: set RAY_AUTH_MODE=token" in refusal(address)


def test_the_questions_together_take_less_than_15_seconds() -> None:
    assert reach.CONNECT_S + 2 * reach.ANSWER_S < 15
