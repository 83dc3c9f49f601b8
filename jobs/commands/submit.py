"""`coa submit`: runs a command on a Ray cluster, or writes its manifest for KubeRay.

coa submit --address http://head:8265 train --recipe tiny      sends the folder, follows the log, ends with its status
coa submit --address http://head:8265 --stop JOB
coa submit --kuberay job.yaml train --recipe web_32b           for kubectl apply
"""

import os
import sys
from argparse import REMAINDER, ArgumentParser
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cluster.manifests.groups import Machine
from cluster.manifests.kuberay import Site, as_text, config_maps
from cluster.remote.jobs import Jobs, difference, entrypoint, own_versions, runtime_env
from coa.errors import UserError
from coa.storage.files import write_atomically
from jobs import submission
from jobs.cli import parse
from jobs.commands.command import Command, local_path, positive
from jobs.submission import Submitted

ADDRESS = "RAY_API_SERVER_ADDRESS"
STORAGE = "~/coa"
HOME_OF_IMAGE = "/home/ray"
SPOT, ANY = "karpenter.sh/capacity-type=spot", "any"

EPILOG = """\
Of the current folder, what the command needs is sent: the recipe, the files that settings and arguments name, the
modules of COA_EXTENSIONS, this project's packages if it is a checkout, and what --send names. On the cluster, runs/ and
models/ are links into --storage, which all nodes must see. Ctrl-C stops the job. Variables that hold keys must be set
on the cluster's nodes; their values are never sent."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--address", default=os.environ.get(ADDRESS), help=f"the cluster's dashboard, http://head:8265 (${ADDRESS})"
    )
    parser.add_argument("--storage", default=STORAGE, help="folder of the cluster for runs/ and models/ (%(default)s)")
    parser.add_argument("--requirements", type=local_path, help="requirements file of packages that the image lacks")
    parser.add_argument(
        "--send", action="append", type=local_path, default=[], metavar="PATH", help="send this file or folder as well"
    )
    parser.add_argument("--dry-run", action="store_true", help="list what would be sent, and send nothing")
    parser.add_argument("--env", action="append", default=[], metavar="NAME", help="send this variable (no secrets)")
    parser.add_argument("--detach", action="store_true", help="print the job's id, and do not follow it")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--follow", metavar="JOB", help="follow a job that runs")
    which.add_argument("--stop", metavar="JOB", help="stop a job that runs")
    which.add_argument(
        "--kuberay", type=local_path, metavar="FILE", help="write a manifest for KubeRay, and send nothing"
    )
    kuberay = parser.add_argument_group("for --kuberay")
    kuberay.add_argument("--cluster", action="store_true", help="write only a RayCluster, for coa submit --address")
    kuberay.add_argument("--name", help="name of the resource (coa-COMMAND-RECIPE)")
    kuberay.add_argument("--image", help="image, built from the Dockerfile (chain-of-agents:VERSION)")
    kuberay.add_argument("--claim", default="coa", help="volume claim that many nodes may write to (%(default)s)")
    kuberay.add_argument("--secret", default="coa", help="Secret whose keys are variables of every pod (%(default)s)")
    kuberay.add_argument(
        "--spot", default=SPOT, metavar="LABEL=VALUE", help=f"label of spot machines, or {ANY}: %(default)s"
    )
    kuberay.add_argument("--node-cpus", type=positive, default=64, help="CPUs of the largest node (%(default)s)")
    kuberay.add_argument("--node-gpus", type=positive, default=8, help="GPUs of the largest node (%(default)s)")
    parser.add_argument("words", nargs=REMAINDER, metavar="COMMAND ...", help="the command, as after `coa`")


def run(
    *,
    address: str | None,
    words: list[str],
    storage: str,
    requirements: Path | None,
    send: list[Path],
    dry_run: bool,
    env: list[str],
    detach: bool,
    follow: str | None,
    stop: str | None,
    kuberay: Path | None,
    **manifest: Any,
) -> int:
    """Returns the exit status."""
    if kuberay is not None:
        return _write(kuberay, submission.parse(words, Path.cwd(), parse), storage, **manifest)
    if stop is not None:
        print(f"{stop}: {_jobs(address).stop(stop)}")
        return 0
    if follow is not None:
        return _follow(_jobs(address), follow)
    submitted = submission.parse(words, Path.cwd(), parse)
    variables = submission.plain_variables(env, os.environ)
    sent = submission.parcel_of(submitted, Path.cwd(), requirements, send)
    if dry_run:
        print(*sent.lines(), sep="\n")
        return 0
    jobs = _jobs(address)
    print(*sent.lines(), sep="\n", file=sys.stderr)
    if line := difference(own_versions(), jobs.versions()):
        print(f"warning: {line}", file=sys.stderr)
    with TemporaryDirectory() as folder:
        sent.copy(Path(folder))
        job = jobs.submit(entrypoint(words, storage), runtime_env(Path(folder), requirements, variables))
    print(f"{job} is submitted to {address}")
    return 0 if detach else _follow(jobs, job)


def _jobs(address: str | None) -> Jobs:
    if address is None:
        raise UserError(f"coa submit needs --address, or ${ADDRESS}: the cluster's dashboard, such as http://head:8265")
    return Jobs(address)


def _follow(jobs: Jobs, job: str) -> int:
    try:
        status = jobs.follow(job, lambda text: print(text, end="", flush=True))
    except KeyboardInterrupt:
        print(f"stopping {job}", file=sys.stderr)
        jobs.stop(job)
        raise
    if status:
        print(f"coa: {job} ended with status {status}: {jobs.message(job)}", file=sys.stderr)
    return status


def _write(
    file: Path,
    submitted: Submitted,
    storage: str,
    *,
    cluster: bool,
    name: str | None,
    image: str | None,
    claim: str,
    secret: str,
    spot: str,
    node_cpus: int,
    node_gpus: int,
) -> int:
    label, is_label, value = spot.partition("=")
    if spot != ANY and not is_label:
        raise UserError(f"--spot {spot}: a label of nodes is LABEL=VALUE")
    default_name = submission.default_name(submitted)
    # A cluster alone gets the recipe with each command that is sent to it.
    submitted, recipes = (submitted, {}) if cluster else submission.mounted(submitted)
    site = Site(
        name=name or default_name,
        image=image or submission.default_image(),
        ray_version=version("ray"),
        storage=storage.replace("~", HOME_OF_IMAGE, 1) if storage.startswith("~") else storage,
        claim=claim,
        secret=secret,
        spot=None if spot == ANY else (label, value),
        recipes=recipes,
    )
    document = submission.manifest(submitted, site, Machine(node_cpus, node_gpus), cluster_only=cluster)
    write_atomically(file, as_text(*config_maps(site), document))
    print(f"{document['kind']} {site.name} is in {file}: kubectl apply -f {file}")
    return 0


COMMAND = Command(name="submit", run=run, arguments=arguments, epilog=EPILOG)
