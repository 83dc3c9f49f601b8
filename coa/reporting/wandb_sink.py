"""Weights & Biases: a run's records under their names in `metrics.jsonl`, prefixed with their stage: `rl/reward`.

A separate thread imports wandb, starts it and writes, so that neither a slow import nor a slow network blocks a stage.
The files are in the run directory, under `wandb/`; a run directory is one wandb run, even if it is resumed.
"""

import netrc
import os
import queue
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from coa.errors import UserError
from coa.json_object import JsonView
from coa.reporting.boundary import SinkBoundary
from coa.reporting.metrics import Record, measured
from coa.storage.files import write_atomically

if TYPE_CHECKING:
    import wandb

START_S = 20
"""Maximum seconds to wait for wandb's server at the start; after that the run is logged offline."""
OFFLINE_START_S = 300
"""Maximum seconds for a start without a server."""
FINISH_S = 60.0
"""Maximum seconds to wait at the end for records that are not yet sent or written."""
QUIET_S = 2.0
"""Seconds of that wait before the user is told."""


class WandbMode(Enum):
    auto = "auto"
    """The value of WANDB_MODE; if that is not set, online if there is a key, else offline."""
    online = "online"
    offline = "offline"
    """Writes files only, which `wandb sync` can send later."""
    disabled = "disabled"


@dataclass(frozen=True)
class WandbConfig:
    """Logging to Weights & Biases."""

    mode: WandbMode = WandbMode.auto
    """auto: the value of WANDB_MODE; if that is not set, online if there is a key, otherwise offline. offline writes
    files only, which `wandb sync` can send later."""
    project: str = "chain-of-agents"
    """Project to which the run is logged."""
    entity: str | None = None
    """User or team; None takes the key's default."""
    name: str | None = None
    """Name of the run; None takes the run folder's name."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""


def mode_of(config: WandbConfig, environment: Mapping[str, str] = os.environ) -> tuple[WandbMode, str]:
    """Returns the effective mode (never `auto`), and a message if it differs from the configured one, else "".

    Raises UserError for an invalid WANDB_MODE.
    """
    mode = config.mode
    if mode is WandbMode.auto and (asked := environment.get("WANDB_MODE")):
        try:
            mode = WandbMode(asked)
        except ValueError as error:
            known = ", ".join(known.value for known in WandbMode)
            raise UserError(f"WANDB_MODE is {asked!r}; known are {known}") from error
    if mode in (WandbMode.auto, WandbMode.online) and not has_key(environment):
        missing = "there is no key for wandb (WANDB_API_KEY): logged offline"
        return WandbMode.offline, missing if mode is WandbMode.online else ""
    return (WandbMode.online if mode is WandbMode.auto else mode), ""


def has_key(environment: Mapping[str, str]) -> bool:
    """Whether wandb has a key for its server: in WANDB_API_KEY, or in the netrc file, where `wandb login` puts it."""
    if environment.get("WANDB_API_KEY"):
        return True
    path = Path(environment.get("NETRC") or os.path.expanduser("~/.netrc"))
    host = urlsplit(environment.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def row(record: Record) -> dict[str, float]:
    """The record as wandb gets it: its numbers and its step, with the stage as a prefix of the name."""
    stage = record["stage"]
    return {f"{stage}/step": record["step"], **{f"{stage}/{name}": value for name, value in measured(record)}}


def run_id(folder: Path) -> str:
    """The id of this folder's run at wandb, made when it is first asked for."""
    path = folder / "wandb" / "run-id"
    if not path.exists():
        write_atomically(path, uuid.uuid4().hex[:12])
    return path.read_text()


class WandbSink:
    """A sink whose thread owns wandb; `say` shows a line to the user."""

    def __init__(
        self,
        folder: Path,
        config: WandbConfig,
        mode: WandbMode,
        *,
        recipe: JsonView,
        say: Callable[[str], None],
        boundary: SinkBoundary,
    ) -> None:
        """mode: online or offline. recipe: the run's configuration, shown beside its curves. boundary: takes a failure
        of the thread."""
        self._folder, self._config, self._mode, self._recipe, self._say = folder, config, mode, recipe, say
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._finished = False
        self._thread = threading.Thread(target=boundary.attempt, args=(str(self), self._work), daemon=True)
        self._thread.start()

    def __str__(self) -> str:
        return "wandb"

    def emit(self, record: Record) -> None:
        self._records.put(record)

    def close(self) -> None:
        """Waits until everything is written or sent, for at most a minute, and tells the user if that takes long."""
        self._records.put(None)
        self._thread.join(QUIET_S)
        if self._thread.is_alive():
            self._say(f"wandb: waiting up to {FINISH_S:.0f} s for the last records")
            self._thread.join(FINISH_S)
        if not self._finished:
            folder = self._folder / "wandb"
            self._say(f"wandb: not everything was sent; metrics.jsonl has it all, and {folder} what wandb got")

    def _work(self) -> None:
        # Reports about wandb itself go over the network, which the end of the process would wait for.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        run = self._start(wandb)
        while (record := self._records.get()) is not None:
            run.log(row(record))
        run.finish()
        wandb.teardown()  # returns once wandb's service has written everything and ended
        self._finished = True

    def _start(self, wandb: ModuleType) -> "wandb.Run":
        from wandb.errors import Error

        if self._mode is WandbMode.online:
            try:
                return self._init(wandb, "online")
            except Error as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                self._say(f"wandb: {reason}: logged offline")
                wandb.teardown()  # otherwise its service keeps the run's id for the failed start
        return self._init(wandb, "offline")

    def _init(self, wandb: ModuleType, mode: str) -> "wandb.Run":
        run = wandb.init(
            mode=mode,
            project=self._config.project,
            entity=self._config.entity,
            name=self._config.name or self._folder.name,
            tags=self._config.tags,
            config=dict(self._recipe),
            dir=self._folder,
            id=run_id(self._folder),
            resume="allow" if mode == "online" else None,
            settings=wandb.Settings(
                init_timeout=START_S if mode == "online" else OFFLINE_START_S,
                login_timeout=START_S,
                console="off",
                silent=True,
                save_code=False,
                disable_git=True,
                x_disable_stats=True,
                x_disable_meta=True,
            ),
        )
        run.define_metric("*", summary="last")
        for stage in ("sft", "rl"):
            run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
        return run
