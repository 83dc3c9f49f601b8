"""Manifests for KubeRay, against the facts of its schemas and rules."""

import functools
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.learner.sizes import architecture
from cluster.manifests.groups import Group, Machine, groups_of
from cluster.manifests.kuberay import Document, Site
from cluster.resources import Demand, Role
from coa.errors import UserError
from coa.planning.memory import GIB, width_of
from jobs import cli
from jobs.recipe.find import RECIPES
from jobs.serving import Arguments
from jobs.submission import Submitted, default_name, manifest, parse
from tests.cluster.manifests.kuberay_rules import problems

SITE = Site(
    name="coa",
    image="coa:1",
    ray_version="2.60.0",
    storage="/home/ray/coa",
    claim="coa",
    secret="keys",
    spot=("spot", "yes"),
)


@functools.cache
def read_once(*words: str) -> Submitted:
    return parse(words, Path("/"), cli.parse)


def made(*words: str, cluster_only: bool = False) -> Document:
    submitted = read_once(*words)
    site = replace(SITE, name=default_name(submitted))
    return manifest(submitted, site, Machine(cpus=64, gpus=8), cluster_only=cluster_only)


SERVE = ("serve", "--model", "runs/demo/model", "serving.max_replicas=3")


def every_manifest() -> Iterator[tuple[str, Document]]:
    for recipe in ("tiny", "web_32b"):
        yield f"job {recipe}", made("train", "--recipe", recipe)
        yield f"cluster {recipe}", made("train", "--recipe", recipe, cluster_only=True)
    yield "service", made(*SERVE)


def test_kuberay_takes_every_manifest() -> None:
    assert {name: problems(document) for name, document in every_manifest() if problems(document)} == {}


@pytest.mark.parametrize("recipe", [path.stem for path in sorted(RECIPES.glob("*.yaml"))])
def test_the_head_has_the_memory_to_copy_the_model(recipe: str) -> None:
    document = made("train", "--recipe", recipe)
    [container] = document["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    config = read_once("train", "--recipe", recipe).config
    assert config is not None
    built = architecture(config.model)
    assert built is not None
    has = int(container["resources"]["limits"]["memory"].removesuffix("Gi"))
    pretrained = config.model.path is not None
    assert has * GIB >= max(8 * GIB, 1.3 * pretrained * width_of(config.model.dtype) * built.parameters)
    assert has == 8 or pretrained


def groups(document: Document) -> dict[str, dict[str, Any]]:
    spec = document["spec"]
    cluster = spec.get("rayClusterSpec") or spec.get("rayClusterConfig") or spec
    return {group["groupName"]: group for group in cluster["workerGroupSpecs"]}


def test_a_training_run_has_fixed_learners_engines_on_spot_machines_and_a_head_without_work() -> None:
    document = made("train", "--recipe", "web_32b")
    found = groups(document)
    sizes = {name: (group["minReplicas"], group["maxReplicas"]) for name, group in found.items()}
    # 32 ranks with a GPU each, on nodes of 8; 4 engines of 8; 8 executors of a CPU.
    assert sizes == {"learner": (4, 4), "engine": (0, 4), "tool": (0, 1)}
    limits = {name: group["template"]["spec"]["containers"][0]["resources"]["limits"] for name, group in found.items()}
    assert limits["learner"] == {"cpu": "32", "memory": "768Gi", "nvidia.com/gpu": "8"}
    assert limits["engine"]["nvidia.com/gpu"] == "8"
    assert limits["tool"] == {"cpu": "8", "memory": "32Gi"}
    assert found["engine"]["template"]["spec"]["nodeSelector"] == {"spot": "yes"}
    assert "nodeSelector" not in found["learner"]["template"]["spec"]
    assert {name: group["labels"]["coa-role"] for name, group in found.items()} == {name: name for name in found}
    head = document["spec"]["rayClusterSpec"]["headGroupSpec"]
    assert head["rayStartParams"] == {"num-cpus": "0"}
    assert "nvidia.com/gpu" not in head["template"]["spec"]["containers"][0]["resources"]["limits"]


def test_the_job_runs_the_command_and_places_by_the_labels_that_its_nodes_have() -> None:
    document = made("train", "--recipe", "tiny", "seed=3", "--retry-failed")
    words = shlex.split(document["spec"]["entrypoint"])
    assert words[:3] == ["python", "-m", "jobs.cli"]
    command, options = cli.parse(words[3:])
    assert (command.name, options["overrides"]) == ("train", ["seed=3", "placement.by_role=true"])
    assert options["said"] == ["distill.retry_failed=true"]
    config = read_once(*words[3:]).config
    assert config is not None
    assert config.placement.by_role


def test_the_service_is_the_server_by_its_import_path() -> None:
    document = made(*SERVE)
    assert document["kind"] == "RayService"
    config = yaml.safe_load(document["spec"]["serveConfigV2"])
    app, probe = config["applications"]
    assert (app["import_path"], probe["import_path"]) == ("jobs.serving:app", "jobs.serving:ready")
    arguments = Arguments(**app["args"])
    assert arguments.model == "/home/ray/coa/runs/demo/model"
    assert arguments.words == ("serving.max_replicas=3", "serving.host=0.0.0.0")
    [engine, tool] = groups(document).values()
    assert (engine["groupName"], engine["maxReplicas"], tool["groupName"]) == ("engine", 3, "tool")
    assert "nodeSelector" not in engine["template"]["spec"], "people wait for it: no spot machines"


def test_no_manifest_holds_a_secret_or_what_is_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "sk-planted-key-of-serper")
    text = yaml.safe_dump(made("train", "--recipe", "web_32b"))
    assert "sk-planted" not in text
    assert "secretRef" in text
    assert not any(word in text for word in ("rocksdb", "networkPolicy", "tlsOptions", "gcsFaultTolerance"))


BREAKS: dict[str, Callable[[Any], object]] = {
    "not known": lambda spec: spec.update(backOffLimit=3),
    "is required": lambda spec: spec["rayClusterSpec"].pop("headGroupSpec"),
    "is no str": lambda spec: spec["rayClusterSpec"].update(rayVersion=2.6),
    "is none of": lambda spec: spec["rayClusterSpec"]["autoscalerOptions"].update(upscalingMode="default"),
    "RAY_enable_autoscaler_v2": lambda spec: head(spec).update(env=[{"name": "RAY_enable_autoscaler_v2"}]),
    "restartPolicy": lambda spec: pod(spec).update(restartPolicy="Always"),
    "minimum Ray version": lambda spec: spec["rayClusterSpec"].update(rayVersion="2.51.0"),
    "labels": lambda spec: spec["rayClusterSpec"]["workerGroupSpecs"][0].update(rayStartParams={"labels": "a=b"}),
    "in both": lambda spec: spec["rayClusterSpec"]["headGroupSpec"].update(resources={"CPU": "1"}),
    "minReplicas": lambda spec: spec["rayClusterSpec"]["workerGroupSpecs"][0].update(minReplicas=9),
    "deletionRules": lambda spec: spec.update(deletionStrategy={"deletionRules": []}),
    "ttlSecondsAfterFinished": lambda spec: spec.update(shutdownAfterJobFinishes=False),
    "volumeMounts": lambda spec: pod(spec).pop("volumes"),
}


def pod(spec: Any) -> Any:
    return spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]


def head(spec: Any) -> Any:
    return pod(spec)["containers"][0]


@pytest.mark.parametrize("said", BREAKS)
def test_the_rules_refuse_what_kuberay_refuses(said: str) -> None:
    document = made("train", "--recipe", "tiny")
    BREAKS[said](document["spec"])
    assert [line for line in problems(document) if said in line], problems(document)


@pytest.mark.parametrize("name", ["Coa", "1coa", "coa-", "coa_train", "c" * 48, ""])
def test_a_name_that_kubernetes_refuses_is_refused_here(name: str) -> None:
    with pytest.raises(UserError, match="is no name for Kubernetes"):
        replace(SITE, name=name)


def test_groups_have_room_for_the_largest_stage_and_no_more() -> None:
    rank, engine = {"CPU": 4.0, "GPU": 1.0}, {"CPU": 2.0, "GPU": 2.0}
    sft = [Demand("learner rank", Role.learner, rank)] * 4
    rl = [*[Demand("learner rank", Role.learner, rank)] * 6, *[Demand("engine", Role.engine, engine)] * 3]
    found = groups_of([sft, rl, [Demand("tool", Role.tool, {"CPU": 0.25})] * 5], Machine(cpus=16, gpus=8))
    assert found == [
        # Four ranks take the CPUs of a node.
        Group(role=Role.learner, nodes=2, fixed=True, cpus=16, gpus=4),
        Group(role=Role.engine, nodes=3, fixed=False, cpus=2, gpus=2),
        Group(role=Role.tool, nodes=1, fixed=False, cpus=2, gpus=0),
    ]
    assert [group.memory_gib for group in found] == [384, 192, 8]


@pytest.mark.parametrize(
    ("demand", "said"),
    [
        (Demand("learner", Role.learner, {"CPU": 1, "GPU": 16}), "a node for learner needs 16 GPUs, and .* has 8 "),
        (Demand("engine", Role.engine, {"CPU": 1, "GPU": 9}), "a node for engine needs 9 GPUs, .*--node-gpus"),
        (Demand("tool", Role.tool, {"CPU": 17.5}), "a node for tool needs 17.5 CPUs, .* has 16 .*--node-cpus"),
    ],
)
def test_a_demand_that_is_larger_than_a_node_is_refused(demand: Demand, said: str) -> None:
    with pytest.raises(UserError, match=said):
        groups_of([[demand]], Machine(cpus=16, gpus=8))


def test_a_command_without_a_recipe_needs_no_cluster() -> None:
    with pytest.raises(UserError, match="coa recipe has no recipe"):
        made("recipe")


OWN = "tasks: {world: tiny}\nrun_dir: runs/mine\n"


@pytest.mark.parametrize(
    ("words", "mounts"),
    [
        (("train", "--recipe", "./mine.yaml", "seed=3"), 4),
        (("train", "--recipe=./mine.yaml"), 4),
        (("serve", "--model", "runs/mine/model", "--recipe", "mine.yaml"), 3),
    ],
)
def test_a_recipe_of_the_users_own_is_shipped_and_the_command_reads_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], mounts: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(OWN)
    assert cli.main(["submit", "--kuberay", "job.yaml", *words]) == 0
    shipped, document = yaml.safe_load_all(Path("job.yaml").read_text())
    assert (shipped["kind"], shipped["data"]) == ("ConfigMap", {"mine.yaml": OWN})
    assert problems(document) == []
    spec = document["spec"]
    cluster = spec.get("rayClusterSpec") or spec["rayClusterConfig"]
    templates = [one["template"]["spec"] for one in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    assert len(templates) == mounts
    for template in templates:
        [volume] = [one for one in template["volumes"] if "configMap" in one]
        assert volume["configMap"]["name"] == shipped["metadata"]["name"]
        [mount] = [one for one in template["containers"][0]["volumeMounts"] if one["name"] == volume["name"]]
        assert (mount["mountPath"], mount["readOnly"]) == ("/etc/coa/recipes", True)
    if document["kind"] == "RayJob":
        _, options = cli.parse(shlex.split(spec["entrypoint"])[3:])
        assert options["recipe"] == "/etc/coa/recipes/mine.yaml"
    else:
        [app, _] = yaml.safe_load(spec["serveConfigV2"])["applications"]
        assert app["args"]["recipe"] == "/etc/coa/recipes/mine.yaml"


def test_a_recipe_with_a_secret_in_it_is_not_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERPER_API_KEY", "sk-planted-key-of-serper")
    Path("mine.yaml").write_text(f"{OWN}seed: 3 # sk-planted-key-of-serper\n")
    words = ("submit", "--kuberay", "job.yaml")
    assert cli.main([*words, "train", "--recipe", "./mine.yaml"]) == 2
    said = capfd.readouterr().err
    assert said.startswith("coa: ./mine.yaml holds the value of $SERPER_API_KEY, and everybody who sees the cluster")
    assert not Path("job.yaml").exists()
    assert cli.main([*words, "--cluster", "train", "--recipe", "./mine.yaml"]) == 0, "it has no recipe"
    assert "sk-planted" not in Path("job.yaml").read_text()


def test_the_command_writes_the_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    words = ["--kuberay", str(file), "--image", "me/coa:2", "--spot", "any", "train", "--recipe", "tiny"]
    assert cli.main(["submit", *words]) == 0
    assert capfd.readouterr().out == f"RayJob coa-train-tiny is in {file}: kubectl apply -f {file}\n"
    document = yaml.safe_load(file.read_text())
    assert problems(document) == []
    engine = groups(document)["engine"]
    assert engine["template"]["spec"]["containers"][0]["image"] == "me/coa:2"
    assert "nodeSelector" not in engine["template"]["spec"]
    assert engine["labels"]["ray.io/market-type"] == "on-demand"
    assert cli.main(["submit", "--kuberay", str(file), "--spot", "x", "train", "--recipe", "tiny"]) == 2
