"""The files beside the manifests: a cluster of machines by SSH, and the image."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
SSH = ROOT / "cluster" / "manifests" / "ssh.yaml"


def test_ray_takes_the_cluster_of_machines() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(yaml.safe_load(SSH.read_text()))
    validate_config(config)
    assert config["available_node_types"]["local.cluster.node"]["max_workers"] == 2


def test_its_head_does_no_work_and_no_value_of_a_secret_is_in_it() -> None:
    config = yaml.safe_load(SSH.read_text())
    [head] = [line for line in config["head_start_ray_commands"] if "--head" in line]
    assert "--num-cpus=0" in head.split()
    assert [option for option in config["docker"]["run_options"] if "env" in option] == ["--env-file=/etc/coa.env"]


def test_the_image_leaves_out_what_is_large_or_secret_and_runs_as_nobody_special() -> None:
    left_out = set((ROOT / ".dockerignore").read_text().split())
    assert {"runs", "models", ".venv", ".git", ".env", "*.pem"} <= left_out
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER ray"]
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    wanted = set(re.findall(r"missing\+=\((?!python3)([\w+-]+)\)", setup))
    assert wanted
    assert all(f" {package}" in "\n".join(lines) for package in wanted), "what the set-up needs is in the image"
