"""Ray's autoscaler on one machine: nodes that its fake provider starts and ends as they are needed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HEAD, HEAD_TYPE = "f" * 51 + "00000", "ray.head.default"
"""As the provider calls them."""
VARIABLES = {
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
    "RAY_CLOUD_INSTANCE_ID": HEAD,
    "RAY_NODE_TYPE_NAME": HEAD_TYPE,
}
"""Of the head."""
COMMANDS = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")


def written(folder: Path, address: str, nodes: Mapping[str, Mapping[str, float]], most: int, idle_s: float) -> Path:
    """A file for `ray start --autoscaling-config`. nodes: the resources of each kind; most: of one kind."""
    kinds = {
        name: {"resources": dict(has), "node_config": {}, "min_workers": 0, "max_workers": most}
        for name, has in nodes.items()
    }
    config: dict[str, Any] = {
        "cluster_name": "test",
        "max_workers": most,
        "idle_timeout_minutes": idle_s / 60,
        "upscaling_speed": 9999,
        "head_node_type": HEAD_TYPE,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "head_node_id": HEAD,
            "launch_multiple": True,
            "gcs_address": address,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": {HEAD_TYPE: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}, **kinds},
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
        **{f"{name}_commands": [] for name in COMMANDS},
        "file_mounts_sync_continuously": False,
    }
    path = folder / "autoscaling.json"
    path.write_text(json.dumps(config))
    return path
