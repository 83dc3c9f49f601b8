"""Checks whether a Ray cluster answers at an address, and whether this process can join it.

Called before `ray.init`, which waits for minutes if no cluster answers, and may end the process.
"""

import json
import os
import re
import socket
from typing import Any

from coa.errors import UserError
from coa.json_object import Json

CONNECT_S = 4.0
ANSWER_S = 5.0
"""Maximum seconds for the cluster's answer: together with CONNECT_S, a wrong address is reported within 15 s."""
OTHER = "the port is open, but it does not answer as a Ray cluster does"
_ADDRESS = re.compile(r"(ray://)?(\[[0-9a-fA-F:.]+\]|[\w.-]+):(\d{1,5})")


def require_cluster(address: str) -> None:
    """Raises UserError, with one line, unless a cluster of this process's versions of Ray and Python answers.

    address: in the form of RAY_ADDRESS: `auto`, `host:6379`, or `ray://host:10001`, for which only the port is checked.
    """
    if address == "auto":
        address = _running_here()
    scheme, host, port = parts_of(address)
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"no Ray cluster answers at {address} (RAY_ADDRESS): {reason}") from error
    if scheme is None and os.environ.get("RAY_USE_TLS", "0") != "1":  # with TLS only Ray has the certificates
        _require_versions(address, _metadata(address))


def parts_of(address: str) -> tuple[str | None, str, int]:
    """Scheme (or None), host and port of an address; raises UserError if it is malformed."""
    matched = _ADDRESS.fullmatch(address)
    if matched is None:
        raise UserError(f"the cluster's address {address!r} (RAY_ADDRESS) is not host:port, such as 10.0.0.7:6379")
    return matched[1], matched[2].strip("[]"), int(matched[3])


def _running_here() -> str:
    from ray._private.services import canonicalize_bootstrap_address_or_die  # has no public interface

    try:
        return canonicalize_bootstrap_address_or_die("auto")
    except ConnectionError as error:
        raise UserError("RAY_ADDRESS is auto, but this machine runs no Ray cluster, or several") from error


def _metadata(address: str) -> Json:
    """The cluster's metadata, by a direct call of its control service with a timeout."""
    import grpc
    from ray._common.usage.usage_constants import CLUSTER_METADATA_KEY
    from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled
    from ray._private.ray_constants import KV_NAMESPACE_CLUSTER
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    messages: Any = gcs_service_pb2
    wanted = messages.InternalKVGetRequest(key=CLUSTER_METADATA_KEY, namespace=KV_NAMESPACE_CLUSTER)
    headers = [(name.lower(), value) for name, value in get_auth_headers_if_auth_enabled({}).items()]
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        ask = gcs_service_pb2_grpc.InternalKVGcsServiceStub(channel).InternalKVGet
        try:
            return json.loads(ask(wanted, timeout=ANSWER_S, metadata=headers).value)
        except grpc.RpcError as error:
            status: Any = error
            if status.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                why = "it asks for another token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the cluster's token"
            else:
                why = f"{OTHER} ({status.code().name.lower()})"
        except ValueError:
            why = OTHER
    raise UserError(f"no Ray cluster answers at {address} (RAY_ADDRESS): {why}")


def _require_versions(address: str, metadata: Json) -> None:
    from ray._private.utils import check_version_info, compute_version_info

    try:
        check_version_info(metadata, address)
    except RuntimeError as error:
        ray, python = compute_version_info()[:2]
        raise UserError(
            f"the cluster at {address} (RAY_ADDRESS) runs Ray {metadata['ray_version']} and Python "
            f"{metadata['python_version']}, and here are Ray {ray} and Python {python}: they have to be the same"
        ) from error
