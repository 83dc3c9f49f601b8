"""KubeRay's resources (version 1.7 of the operator) for a job: pure functions that return the documents that `kubectl`
applies.

    RayCluster    nodes alone, for `coa submit --address`
    RayJob        nodes for one command; those that end too early are made again, and the same command resumes
    RayService    a server by the import path of `jobs.serving`, whose updates move the traffic step by step
    ConfigMap     beside one of them, if it has a recipe of the user's own

The documents contain no secrets: pods get variables from the named Secret, if it exists.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import yaml

from cluster.manifests.groups import Group
from cluster.resources import ROLE_LABEL, Role
from coa.errors import UserError
from coa.json_object import Json
from coa.serving.front import SERVE

Document = Json

API = "ray.io/v1"
LONGEST_NAME = 47
"""Maximum length of the name of a RayJob or RayService; the names of its cluster and pods are longer."""
HEAD_CPUS, HEAD_MEMORY_GIB = 2, 8
IDLE_S = 300
"""Seconds for which an idle node is kept, since engines come back between two stages."""
PENDING_S = 3600
"""Seconds after which a job without nodes fails."""
TRIES = 3
"""Maximum number of times that a cluster is created again after a job failed; the same command resumes."""
KEPT_S = 600
"""How long a job's cluster stays after its end, to be looked at."""
RECIPES = "/etc/coa/recipes"
"""Where pods see the recipes of a Site."""
PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001}
SERVE_PORT = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Settings of the Kubernetes cluster: names, image, storage, secret and machine labels."""

    name: str
    image: str
    ray_version: str
    storage: str
    """Mount path of the volume in pods, also their working directory."""
    claim: str
    """Name of a PersistentVolumeClaim that many nodes may write (ReadWriteMany)."""
    secret: str
    """Name of a Secret whose keys become environment variables of every pod; it need not exist."""
    spot: tuple[str, str] | None
    """Label of spot machines and its value; None: engines run on any machine."""
    head_memory_gib: int = HEAD_MEMORY_GIB
    """Memory of the head, where the driver runs."""
    gateway: str = "istio"
    """The GatewayClass through which a RayService's traffic moves."""
    recipes: Mapping[str, str] = field(default_factory=dict[str, str])
    """The text of recipes of the user's own, by the name of the file."""

    def __post_init__(self) -> None:
        letters = self.name.replace("-", "")
        fine = letters.isascii() and letters.isalnum() and self.name == self.name.lower() and self.name[:1].isalpha()
        if not fine or self.name.endswith("-") or len(self.name) > LONGEST_NAME:
            raise UserError(
                f"{self.name!r} is no name for Kubernetes: at most {LONGEST_NAME} small letters, digits and -"
            )
        if not self.storage.startswith("/"):
            raise UserError(f"{self.storage}: the folder of a volume begins with /")


def ray_cluster(site: Site, groups: Sequence[Group]) -> Document:
    return _document("RayCluster", site, _nodes(site, groups))


def ray_job(site: Site, groups: Sequence[Group], entrypoint: str) -> Document:
    return _document(
        "RayJob",
        site,
        {
            "entrypoint": entrypoint,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": KEPT_S,
            "preRunningDeadlineSeconds": PENDING_S,
            "backoffLimit": TRIES,
            "rayClusterSpec": _nodes(site, groups),
        },
    )


def ray_service(site: Site, groups: Sequence[Group], serve: Json) -> Document:
    """serve: a configuration of Ray Serve, as for `serve deploy`."""
    upgrade = {
        "type": "NewClusterWithIncrementalUpgrade",
        "clusterUpgradeOptions": {
            "gatewayClassName": site.gateway,
            "maxSurgePercent": 50,
            "stepSizePercent": 10,
            "intervalSeconds": 30,
        },
    }
    return _document(
        "RayService",
        site,
        {
            "upgradeStrategy": upgrade,
            "serveConfigV2": yaml.safe_dump(dict(serve), sort_keys=False),
            "rayClusterConfig": _nodes(site, groups, {**PORTS, "serve": SERVE_PORT}),
        },
    )


def serve_config(arguments: Json) -> Document:
    """Ray Serve's configuration for the server and its readiness probe."""
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": SERVE_PORT},
        "controller_options": {"runtime_env": {"env_vars": dict(SERVE)}},
        "applications": [
            {"name": "coa", "route_prefix": "/", "import_path": "jobs.serving:app", "args": dict(arguments)},
            {"name": "coa-readyz", "route_prefix": "/readyz", "import_path": "jobs.serving:ready"},
        ],
    }


def config_maps(site: Site) -> list[Document]:
    """Returns the ConfigMaps, which must be there before the site's other resources."""
    metadata = {"name": _recipes_of(site)}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(site.recipes)}
    return [made] if site.recipes else []


def _recipes_of(site: Site) -> str:
    return f"{site.name}-recipes"


def as_text(*documents: Document) -> str:
    return yaml.safe_dump_all(documents, sort_keys=False)


def _document(kind: str, site: Site, spec: Document) -> Document:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": site.name}, "spec": spec}


def _nodes(site: Site, groups: Sequence[Group], ports: Mapping[str, int] = PORTS) -> Document:
    return {
        "rayVersion": site.ray_version,
        "authOptions": {"mode": "token"},
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {"version": "v2", "idleTimeoutSeconds": IDLE_S, "upscalingMode": "Default"},
        "headGroupSpec": {
            # The head runs only the driver.
            "rayStartParams": {"num-cpus": "0"},
            "template": _pod(site, "ray-head", cpus=HEAD_CPUS, gpus=0, memory_gib=site.head_memory_gib, ports=ports),
        },
        "workerGroupSpecs": [_workers(site, group) for group in groups],
    }


def _workers(site: Site, group: Group) -> Document:
    spot = site.spot if group.role is Role.engine else None
    pod = _pod(site, "ray-worker", cpus=group.cpus, gpus=group.gpus, memory_gib=group.memory_gib)
    if spot is not None:
        name, value = spot
        pod["spec"]["nodeSelector"] = {name: value}
        pod["spec"]["tolerations"] = [{"key": name, "operator": "Equal", "value": value, "effect": "NoSchedule"}]
    least = group.nodes if group.fixed else 0
    return {
        "groupName": group.role.value,
        "replicas": least,
        "minReplicas": least,
        "maxReplicas": group.nodes,
        "labels": {ROLE_LABEL: group.role.value, "ray.io/market-type": "spot" if spot else "on-demand"},
        "rayStartParams": {},
        "template": pod,
    }


def _pod(
    site: Site, name: str, *, cpus: int, gpus: int, memory_gib: int, ports: Mapping[str, int] | None = None
) -> Document:
    amounts = {"cpu": str(cpus), "memory": f"{memory_gib}Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    container: Document = {
        "name": name,
        "image": site.image,
        # A recipe's relative paths are then the same on every node.
        "workingDir": site.storage,
        "envFrom": [{"secretRef": {"name": site.secret, "optional": True}}],
        "resources": {"limits": amounts, "requests": dict(amounts)},
        "volumeMounts": [{"name": "storage", "mountPath": site.storage}],
    }
    if ports:
        container["ports"] = [{"name": key, "containerPort": port} for key, port in ports.items()]
    volumes: list[Document] = [{"name": "storage", "persistentVolumeClaim": {"claimName": site.claim}}]
    if site.recipes:
        container["volumeMounts"].append({"name": "recipes", "mountPath": RECIPES, "readOnly": True})
        volumes.append({"name": "recipes", "configMap": {"name": _recipes_of(site)}})
    return {"spec": {"containers": [container], "volumes": volumes}}
