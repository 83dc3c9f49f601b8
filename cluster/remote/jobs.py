"""Ray jobs: submits a command with its files to a running cluster, follows it to its end, and stops it.

folder ── package ──► head: entrypoint in the folder's copy ── log ──► terminal
                                      └── exit status ──► exit status
"""

import asyncio
import logging
import os
import platform
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from cluster.session import MODE, TOKEN
from coa.errors import ClusterDown, UserError
from coa.http.addresses import is_web_address
from coa.json_object import Json

OF_THE_CLUSTER = ("runs", "models")
"""Folders in the job's folder that are links to folders kept on the cluster."""
DISABLED = "disabled"
"""Value of RAY_AUTH_MODE without tokens; the other value is in `cluster.session`."""
STOP_S = 60
"""Seconds that a stopped job has to end by itself, including engines and files, before Ray kills it."""
LOOK_S = 1.0
"""Seconds between two polls of a job, and between two attempts to reach a cluster."""
UNREACHED_S = 120.0
"""Seconds without an answer after which a cluster is given up; the job may continue."""
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
    """One line if the cluster's versions differ; empty otherwise. Python's patch version may differ."""
    minor = [one.python.split(".")[:2] for one in (here, there)]
    if here.ray == there.ray and minor[0] == minor[1]:
        return ""
    return f"the cluster has {there}, this machine {here}: the command may act otherwise there than here"


def entrypoint(words: Sequence[str], storage: str) -> str:
    """Shell command for `coa WORDS` in the copy of the folder. storage: the cluster's own folder; ~ is the home
    directory there."""
    folder = (
        '"$HOME"' + shlex.quote(storage[1:]) if storage == "~" or storage.startswith("~/") else shlex.quote(storage)
    )
    links = " && ".join(f"mkdir -p {folder}/{name} && ln -sfn {folder}/{name} {name}" for name in OF_THE_CLUSTER)
    # exec: the command itself gets the stop signal, and its exit status is the job's.
    return f"{links} && exec {command(words)}"


def command(words: Sequence[str]) -> str:
    return shlex.join(["python", "-m", "jobs.cli", *words])


def runtime_env(folder: Path, requirements: Path | None, plain: Mapping[str, str]) -> Json:
    """Ray's runtime environment for a job. folder: what is sent. plain: environment variables without secrets, since
    all users of the cluster can see them."""
    return {
        "working_dir": str(folder),
        "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S), "PYTHONUNBUFFERED": "1", **plain},
        **({"pip": str(requirements)} if requirements else {}),
    }


def exit_status(status: str, code: int | None) -> int:
    """Exit status of the command. status: Ray's status of the ended job. code: exit code of the job's driver, negative
    for a signal, None if unknown."""
    match status:
        case "SUCCEEDED":
            return 0
        case "STOPPED":
            return INTERRUPTED
        case _:
            return FAILED if not code else code if code > 0 else 128 - code


class Jobs:
    """The jobs of one cluster; methods raise UserError if no cluster answers at the address or it refuses access."""

    def __init__(self, address: str) -> None:
        # If unset, Ray would send no token even if it has one.
        os.environ.setdefault(MODE, DISABLED)
        from ray.job_submission import JobSubmissionClient

        for handler in logging.getLogger("ray").handlers:  # its client reports each upload and closed connection
            handler.setLevel(logging.WARNING)
        self.address = address
        if not is_web_address(address):  # Ray would take it for a node's address, and try it for minutes
            raise self._nobody()
        with self._answers():
            self._client = JobSubmissionClient(address)

    def versions(self) -> Versions:
        with self._answers():
            found = self._client._do_request("GET", "/api/v0/cluster_metadata").json()["data"]
        return Versions(found["rayVersion"], found["pythonVersion"])

    def submit(self, line: str, environment: Json) -> str:
        """Submits a job and returns its id; raises UserError if the folder is too large to be uploaded."""
        with self._answers():
            try:
                return self._client.submit_job(entrypoint=line, runtime_env=environment)
            except ValueError as error:
                raise UserError(f"the folder can't be sent: {str(error).splitlines()[0]}") from error

    def stop(self, job: str) -> str:
        """Stops a job and returns Ray's status once it has ended; raises UserError if the job is unknown."""
        self._require_job(job)
        with self._answers():
            self._client.stop_job(job)
            while not (status := self._client.get_job_status(job)).is_terminal():
                time.sleep(LOOK_S)
        return str(status.value)

    def follow(self, job: str, say: Callable[[str], None]) -> int:
        """Forwards the job's log to `say` until the job ends; returns the exit status. Raises ClusterDown if the
        cluster stops answering."""
        self._require_job(job)
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
        """Ray's message about the job's end, in one line."""
        with self._answers():
            said = self._client.get_job_info(job).message or ""
        return said.partition(", last available logs")[0].strip().partition("\n")[0]

    def _require_job(self, job: str) -> None:
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
    """Exceptions raised while a cluster can't be reached; Ray raises a plain RuntimeError for a broken connection."""
    from aiohttp import ClientError
    from requests.exceptions import RequestException

    return (ClientError, RequestException, ConnectionError, RuntimeError)
