"""The description of a benchmark: its data set, its protocol, and how its rows are read."""

from dataclasses import dataclass

from coa.tasks.published.item import Reader


@dataclass(frozen=True, slots=True)
class Decoding:
    """The number of attempts at a task, and their sampling parameters."""

    samples: int
    temperature: float
    """Sampling temperature; 0 is greedy decoding, with one attempt."""
    top_p: float = 1.0
    top_k: int = 0
    """Number of the likeliest tokens that are sampled; 0 for all."""
    max_turns: int | None = None
    """Maximum number of the agent's turns in an attempt; None for those of its training."""

    def __post_init__(self) -> None:
        samples, turns = self.samples < 1, self.max_turns is not None and self.max_turns < 1
        if samples or turns or self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ValueError(
                f"samples {self.samples} (at least 1), temperature {self.temperature:g} (at least 0), "
                f"top_p {self.top_p:g} (more than 0, at most 1), top_k {self.top_k} (at least 0), "
                f"max_turns {self.max_turns} (at least 1)"
            )


GREEDY = Decoding(samples=1, temperature=0.0)
OTHERWISE = Decoding(samples=4, temperature=1.0)
"""The protocol of tasks that belong to no benchmark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """A data set on the Hugging Face hub, or a folder with a copy of it."""

    id: str
    config: str | None = None
    split: str = "test"
    files: tuple[str, ...]
    """Patterns of the files that hold this split of this configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A published benchmark."""

    name: str
    """Name of the benchmark; the family of its tasks is this, or `NAME/PART`."""
    hub: Hub
    rows: tuple[int, ...]
    """Number of its rows, followed by the numbers of rows of other copies in use."""
    profile: str
    grader: str
    metric: str
    """Name of the metric; in `avg@k`, k is the number of samples."""
    decoding: Decoding
    """The decoding of its published protocol."""
    read: Reader
    aliases: tuple[str, ...] = ()
    """Other names for it in `data_source` and file names, in lower case."""
    terms: str
    """Its licence and terms of use."""

    def metric_at(self, samples: int) -> str:
        return self.metric.replace("@k", f"@{samples}")


def decoding_of(
    benchmark: Benchmark | None,
    *,
    samples: int | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    max_turns: int | None,
) -> Decoding:
    """The decoding of attempts: settings of the command or recipe take precedence over the benchmark's protocol, which
    takes precedence over OTHERWISE. None is no setting. Greedy decoding has one sample."""
    base = OTHERWISE if benchmark is None else benchmark.decoding
    temperature = base.temperature if temperature is None else temperature
    return Decoding(
        samples=1 if temperature == 0 else base.samples if samples is None else samples,
        temperature=temperature,
        top_p=base.top_p if top_p is None else top_p,
        top_k=base.top_k if top_k is None else top_k,
        max_turns=base.max_turns if max_turns is None else max_turns,
    )
