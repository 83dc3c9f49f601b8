"""Ray's jobs: a command is sent to a running cluster with the files it needs, watched to its end, and stopped.

folder ── package ──► head: entrypoint in the folder's copy ── log ──► terminal
                                      └── exit status ──► exit status
"""

import asyncio
import os
import platform
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cluster.session import MODE, TOKEN
from coa.errors import ClusterDown, UserError
from coa.http.addresses import is_web_address

NEVER_SENT = ("/runs", "/models", "/wandb", ".venv", ".git", ".env", "*.pem", "*.key", "__pycache__", ".*_cache")
"""As in a .gitignore. What a cluster has of its own, what is large, and where secrets are kept."""
OF_THE_CLUSTER = ("runs", "models")
"""Folders that a job finds in its own, as links to those that the cluster keeps."""
DISABLED = "disabled"
"""How Ray asks nobody for a token; what else there is, is in `cluster.session`."""
STOP_S = 60
"""What a job has to end by itself, engines and files included, before Ray kills it."""
LOOK_S = 1.0
"""Between two looks at a job, and two tries at a cluster that does not answer."""
UNREACHED_S = 120.0
"""A cluster that does not answer for so long is given up. The job may go on."""
FAILED, INTERRUPTED = 1, 130


@dataclass(frozen=True, slots=True)
class Versions:
    ray: str
    python: str

    def __str__(self) -> str:
        return f"Ray {self.ray} and Python {self.python}"


def own_versions() -> Versions:
    return Versions(version("ray"), platform.python_version())


def difference(here: Versions, there: Versions) -> str:
    """One line where the cluster runs others; empty where it does not matter. Of Python, the last number does not."""
    minor = [one.python.split(".")[:2] for one in (here, there)]
    if here.ray == there.ray and minor[0] == minor[1]:
        return ""
    return f"the cluster has {there}, this machine {here}: the command may act otherwise there than here"


def entrypoint(words: Sequence[str], storage: str) -> str:
    """The shell's line for `coa WORDS` in the copy of the folder. storage: the cluster's own folder; ~ is the home
    there."""
    folder = (
        '"$HOME"' + shlex.quote(storage[1:]) if storage == "~" or storage.startswith("~/") else shlex.quote(storage)
    )
    links = " && ".join(f"mkdir -p {folder}/{name} && ln -sfn {folder}/{name} {name}" for name in OF_THE_CLUSTER)
    # exec: the command itself is told to stop, and its exit status is the job's.
    return f"{links} && exec {command(words)}"


def command(words: Sequence[str]) -> str:
    return shlex.join(["python", "-m", "jobs.cli", *words])


def runtime_env(folder: Path, requirements: Path | None, plain: Mapping[str, str]) -> dict[str, Any]:
    """plain: variables that are no secrets; whoever may look at the cluster sees them."""
    return {
        "working_dir": str(folder),
        "excludes": list(NEVER_SENT),
        "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S), "PYTHONUNBUFFERED": "1", **plain},
        **({"pip": str(requirements)} if requirements else {}),
    }


def exit_status(status: str, code: int | None) -> int:
    """What the command ends with. status: Ray's word for a job that has ended; code: its driver's, negative for a
    signal, None where nobody saw it end."""
    match status:
        case "SUCCEEDED":
            return 0
        case "STOPPED":
            return INTERRUPTED
        case _:
            return FAILED if not code else code if code > 0 else 128 - code


class Jobs:
    """The jobs of one cluster; raises UserError where nobody answers at its address, or it refuses us."""

    def __init__(self, address: str) -> None:
        # Left unset, Ray would send no token even where it has one.
        os.environ.setdefault(MODE, DISABLED)
        from ray.job_submission import JobSubmissionClient

        self.address = address
        if not is_web_address(address):  # Ray would take it for the address of a node, and look there for minutes
            raise self._nobody()
        with self._answers():
            self._client = JobSubmissionClient(address)

    def versions(self) -> Versions:
        with self._answers():
            found = self._client._do_request("GET", "/api/v0/cluster_metadata").json()["data"]
        return Versions(found["rayVersion"], found["pythonVersion"])

    def submit(self, line: str, environment: dict[str, Any]) -> str:
        """Returns the job's id; raises UserError for a folder that is too large to be sent."""
        with self._answers():
            try:
                return self._client.submit_job(entrypoint=line, runtime_env=environment)
            except ValueError as error:
                raise UserError(f"the folder can't be sent: {str(error).splitlines()[0]}") from error

    def stop(self, job: str) -> str:
        """Returns Ray's word for what became of the job once it has ended; raises UserError for one that is not
        known."""
        self._known(job)
        with self._answers():
            self._client.stop_job(job)
            while not (status := self._client.get_job_status(job)).is_terminal():
                time.sleep(LOOK_S)
        return str(status.value)

    def follow(self, job: str, say: Callable[[str], None]) -> int:
        """Says what the job says until it ends; returns the exit status. Raises ClusterDown where the cluster does not
        answer any more."""
        self._known(job)
        return asyncio.run(self._follow(job, say))

    async def _follow(self, job: str, say: Callable[[str], None]) -> int:
        said, answered = 0, time.monotonic()
        while True:
            try:
                told = 0
                async for text in self._client.tail_job_logs(job):
                    # Each tail begins with the first line.
                    told += len(text)
                    if told > said:
                        say(text[-(told - said) :])
                        said, answered = told, time.monotonic()
                info = await asyncio.to_thread(self._client.get_job_info, job)
                answered = time.monotonic()
                if info.status.is_terminal():
                    return exit_status(str(info.status.value), info.driver_exit_code)
            except _gone() as error:
                if time.monotonic() - answered > UNREACHED_S:
                    raise ClusterDown(f"{self.address} has stopped answering; the job may still be running") from error
            await asyncio.sleep(LOOK_S)

    def message(self, job: str) -> str:
        """What Ray says of the job's end, in one line."""
        with self._answers():
            said = self._client.get_job_info(job).message or ""
        return said.partition(", last available logs")[0].strip().partition("\n")[0]

    def _known(self, job: str) -> None:
        with self._answers():
            if job not in {info.submission_id for info in self._client.list_jobs()}:
                raise UserError(f"{self.address} has no job {job}")

    @contextmanager
    def _answers(self) -> Iterator[None]:
        from ray.exceptions import AuthenticationError
        from requests.exceptions import RequestException

        try:
            yield
        except AuthenticationError as error:
            raise UserError(
                f"{self.address} asks for another token: set {MODE}={TOKEN}, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH "
                f"as the cluster has them ({MODE} is {os.environ[MODE]})"
            ) from error
        except (ConnectionError, RequestException) as error:
            raise self._nobody() from error

    def _nobody(self) -> UserError:
        return UserError(
            f"no cluster answers at {self.address}: expected the address of its dashboard, such as http://head:8265"
        )


def _gone() -> tuple[type[BaseException], ...]:
    """What is raised while a cluster can't be reached; Ray has a plain RuntimeError for a connection that broke."""
    from aiohttp import ClientError
    from requests.exceptions import RequestException

    return (ClientError, RequestException, ConnectionError, RuntimeError)
