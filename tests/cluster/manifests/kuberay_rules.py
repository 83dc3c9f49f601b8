"""What KubeRay 1.7 accepts, as a table: the fields of its resources, and the rules of its own validation.

Sources, of https://github.com/ray-project/kuberay at v1.7.0: `ray-operator/config/crd/bases/ray.io_*.yaml` (fields,
types, what is required, enumerations; `!` marks what is required) and
`ray-operator/controllers/ray/utils/validation.go` (rules, by its functions). A field that the API server does not know
is dropped without a word, so it is refused here.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

Json = Any

POD: Json = {
    "metadata": {"labels": dict, "annotations": dict},
    "spec": {
        "containers!": [
            {
                "name!": str,
                "image": str,
                "workingDir": str,
                "env": [{"name!": str, "value": str, "valueFrom": dict}],
                "envFrom": [{"secretRef": {"name": str, "optional": bool}, "configMapRef": dict, "prefix": str}],
                "resources": {"limits": dict, "requests": dict},
                "volumeMounts": [{"name!": str, "mountPath!": str, "readOnly": bool, "subPath": str}],
                "ports": [{"name": str, "containerPort!": int, "protocol": str}],
            }
        ],
        "volumes": [
            {
                "name!": str,
                "persistentVolumeClaim": {"claimName!": str, "readOnly": bool},
                "configMap": {"name": str, "optional": bool, "defaultMode": int},
                "emptyDir": dict,
            }
        ],
        "nodeSelector": dict,
        "tolerations": [{"key": str, "operator": str, "value": str, "effect": str}],
        "restartPolicy": str,
    },
}
CLUSTER: Json = {
    "rayVersion": str,
    "authOptions": {"mode": ("disabled", "token"), "secretName": str, "enableK8sTokenAuth": bool},
    "enableInTreeAutoscaling": bool,
    "autoscalerOptions": {
        "version": ("v1", "v2"),
        "idleTimeoutSeconds": int,
        "upscalingMode": ("Default", "Aggressive", "Conservative"),
        "resources": dict,
    },
    "headGroupSpec!": {"rayStartParams": dict, "template!": POD, "labels": dict, "resources": dict, "serviceType": str},
    "workerGroupSpecs": [
        {
            "groupName!": str,
            "replicas": int,
            "minReplicas!": int,
            "maxReplicas!": int,
            "idleTimeoutSeconds": int,
            "priority": int,
            "labels": dict,
            "resources": dict,
            "rayStartParams": dict,
            "numOfHosts": int,
            "template!": POD,
        }
    ],
}
JOB: Json = {
    "entrypoint": str,
    "runtimeEnvYAML": str,
    "submissionMode": ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"),
    "backoffLimit": int,
    "activeDeadlineSeconds": int,
    "preRunningDeadlineSeconds": int,
    "shutdownAfterJobFinishes": bool,
    "ttlSecondsAfterFinished": int,
    "suspend": bool,
    "deletionStrategy": dict,
    "rayClusterSpec": CLUSTER,
}
SERVICE: Json = {
    "upgradeStrategy": {
        "type": str,
        "clusterUpgradeOptions": {
            "gatewayClassName!": str,
            "stepSizePercent!": int,
            "intervalSeconds!": int,
            "maxSurgePercent": int,
        },
    },
    "serveConfigV2": str,
    "rayClusterConfig!": CLUSTER,
    "rayClusterDeletionDelaySeconds": int,
}
SPECS: Mapping[str, Json] = {"RayCluster": CLUSTER, "RayJob": JOB, "RayService": SERVICE}
LONGEST_NAMES = {"RayCluster": 53, "RayJob": 47, "RayService": 47}
"""constant.go: MaxRayClusterNameLength; those of jobs and services are six shorter."""
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
START_RESOURCES = {"num-cpus", "num-gpus", "memory", "resources"}


def problems(document: Mapping[str, Any]) -> list[str]:
    """What KubeRay or the API server would say; empty where they take it."""
    kind, spec = document["kind"], document["spec"]
    found = [] if document["apiVersion"] == "ray.io/v1" else ["apiVersion"]
    found += _shape(SPECS[kind], spec, kind)
    if found:
        return found
    name = document["metadata"]["name"]
    if len(name) > LONGEST_NAMES[kind] or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        found.append("ValidateRay*Metadata: no DNS 1035 label, or too long")
    cluster = spec.get("rayClusterSpec") or spec.get("rayClusterConfig") or spec
    found += _of_cluster(cluster)
    match kind:
        case "RayJob":
            found += _of_job(spec)
        case "RayService":
            found += _of_service(spec, cluster)
    return found


def _shape(schema: Json, value: Any, where: str) -> Iterator[str]:
    match schema:
        case type():
            if not isinstance(value, schema) or (schema is int and isinstance(value, bool)):
                yield f"{where}: {value!r} is no {schema.__name__}"
        case tuple():
            if value not in schema:
                yield f"{where}: {value!r} is none of {schema}"
        case list():
            for index, one in enumerate(value):
                yield from _shape(schema[0], one, f"{where}[{index}]")
        case _:
            known = {key.removesuffix("!"): below for key, below in schema.items()}
            yield from (f"{where}.{key} is not known" for key in value.keys() - known.keys())
            yield from (f"{where}.{key} is required" for key in schema if key[-1] == "!" and key[:-1] not in value)
            for key in value.keys() & known.keys():
                yield from _shape(known[key], value[key], f"{where}.{key}")


def _of_cluster(spec: Mapping[str, Any]) -> Iterator[str]:
    """ValidateRayClusterSpec."""
    head, workers = spec["headGroupSpec"], spec.get("workerGroupSpecs", [])
    scales, options = spec.get("enableInTreeAutoscaling", False), spec.get("autoscalerOptions", {})
    v2 = scales and options.get("version") == "v2"
    environment = {one["name"] for one in head["template"]["spec"]["containers"][0].get("env", ())}
    if "version" in options and "RAY_enable_autoscaler_v2" in environment:
        yield "both .spec.autoscalerOptions.version and RAY_enable_autoscaler_v2 are set"
    if "RAY_REDIS_ADDRESS" in environment:
        yield "RAY_REDIS_ADDRESS without GcsFaultToleranceOptions"
    if options.get("idleTimeoutSeconds", 0) < 0:
        yield "autoscalerOptions.idleTimeoutSeconds must be non-negative"
    if spec.get("authOptions", {}).get("mode", "token") == "token":
        numbers = re.findall(r"\d+", spec.get("rayVersion", ""))
        if [int(number) for number in numbers] < [2, 52, 0]:
            yield "authOptions.mode is 'token' but minimum Ray version is 2.52.0"
    for group in (head, *workers):
        yield from _of_group(group, v2)
    for group in workers:
        least, most = group["minReplicas"], group["maxReplicas"]
        if not 0 <= least <= most:
            yield f"worker group {group['groupName']} has minReplicas {least}, maxReplicas {most}"
        if "idleTimeoutSeconds" in group and not v2:
            yield "validateWorkerGroupIdleTimeout: autoscaler v2 is not enabled"
        if group.get("priority") and not v2:
            yield "validateWorkerGroupPriority: autoscaler v2 is not enabled"


def _of_group(group: Mapping[str, Any], v2: bool) -> Iterator[str]:
    parameters, pod = group.get("rayStartParams", {}), group["template"]["spec"]
    if not pod["containers"]:
        yield "a group should have at least one container"
    if not all(isinstance(value, str) for value in parameters.values()):
        yield "rayStartParams are strings"
    if "labels" in parameters:
        yield "validateRayGroupLabels: rayStartParams['labels'] is not supported"
    if START_RESOURCES & parameters.keys() and group.get("resources"):
        yield "validateRayGroupResources: resources in both rayStartParams and Resources"
    if v2 and pod.get("restartPolicy", "Never") != "Never":
        yield "restartPolicy should be Never or unset when using autoscaler V2"
    for key, value in group.get("labels", {}).items():
        if not LABEL.fullmatch(key.rpartition("/")[2]) or not LABEL.fullmatch(value):
            yield f"validateRayGroupLabels: {key}={value}"
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    for container in pod["containers"]:
        # The API server's own rule for pods.
        if not {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes:
            yield "volumeMounts: not found"


def _of_job(spec: Mapping[str, Any]) -> Iterator[str]:
    """ValidateRayJobSpec."""
    ends = spec.get("shutdownAfterJobFinishes", False)
    kept = spec.get("ttlSecondsAfterFinished", 0)
    if kept < 0 or (kept and not ends):
        yield "ttlSecondsAfterFinished needs shutdownAfterJobFinishes"
    if "deletionStrategy" in spec and ends:
        yield "validateDeletionConfiguration: deletionRules exclude shutdownAfterJobFinishes"
    if spec.get("suspend") and not ends:
        yield "a RayJob with shutdownAfterJobFinishes set to false is not allowed to be suspended"
    for name in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if spec.get(name, 1) <= 0:
            yield f"{name} must be a positive integer"
    if spec.get("backoffLimit", 0) < 0:
        yield "backoffLimit must be a positive integer"
    if not isinstance(yaml.safe_load(spec.get("runtimeEnvYAML", "{}")), dict):
        yield "UnmarshalRuntimeEnvYAML"


def _of_service(spec: Mapping[str, Any], cluster: Mapping[str, Any]) -> Iterator[str]:
    """ValidateRayServiceSpec and ValidateClusterUpgradeOptions."""
    upgrade = spec.get("upgradeStrategy", {})
    if upgrade.get("type", "NewCluster") not in ("NewCluster", "NewClusterWithIncrementalUpgrade", "None"):
        yield "Spec.UpgradeStrategy.Type value is invalid"
    if upgrade.get("type") != "NewClusterWithIncrementalUpgrade":
        return
    if not cluster.get("enableInTreeAutoscaling"):
        yield "Ray Autoscaler is required for NewClusterWithIncrementalUpgrade"
    options = upgrade.get("clusterUpgradeOptions")
    if options is None:
        yield "ClusterUpgradeOptions are required for NewClusterWithIncrementalUpgrade"
        return
    most = options.get("maxSurgePercent", 100)
    if not 0 <= options["stepSizePercent"] <= most <= 100:
        yield "stepSizePercent must be less than or equal to maxSurgePercent, both between 0 and 100"
    if options["intervalSeconds"] <= 0 or not options["gatewayClassName"]:
        yield "intervalSeconds must be greater than 0, and gatewayClassName is required"
