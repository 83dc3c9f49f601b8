"""What a recipe can say: one frozen tree of the dataclasses that stand beside what they tune."""

from dataclasses import dataclass, field
from typing import ClassVar

from actors.engine import EngineConfig, SamplingConfig
from actors.learner_config import LearnerConfig
from actors.model_server import ModelServerConfig
from actors.policy import ModelConfig
from actors.teacher import TeachingConfig
from actors.tools import ExecutorConfig
from cluster.resources import PlacementConfig
from cluster.session import SessionConfig
from coa.benchmarks.protocol import decoding_of
from coa.distill.filters import FilterConfig
from coa.distill.obedience import ObedienceConfig
from coa.distill.rewrite import RewriteConfig
from coa.episode import AgentConfig
from coa.models.endpoint import EndpointConfig
from coa.on_policy import OnPolicyConfig
from coa.rescue import RescueConfig
from coa.rewards import RewardConfig
from coa.schedule import steps_for
from coa.selection import SelectionConfig
from coa.staleness import WindowConfig
from coa.teachers.experts import ExpertConfig
from coa.teachers.teams import TeamConfig
from coa.tools.standard import ToolsConfig
from coa.world.world import WorldConfig


@dataclass(frozen=True)
class TasksConfig:
    """Where tasks come from: the tiny world, or a file of the user's."""

    path: str | None = None
    """JSONL, JSON, CSV or Parquet, or a folder of such files; None takes the tiny world's."""
    profile: str = "mhqa"
    """Agent profile of rows that name none."""
    grader: str | None = None
    """How answers to open questions are compared whose rows name no grader; None: the benchmark's way, or the
    profile's. Programs keep their tests, and mathematics its own way, whatever is asked for. Of transcripts, all
    open questions are compared so: they don't tell who named a grader."""
    held_out: float = 0.2
    """Share of a file's tasks kept for evaluation."""


@dataclass(frozen=True)
class TeacherModelConfig:
    """A language model that teachers think with: behind an endpoint, or served in the cluster for the stage."""

    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    serve: ModelServerConfig = field(default_factory=ModelServerConfig)
    """Where it names a model, that is served, and `endpoint` needs no `url`."""

    @property
    def name(self) -> str:
        """What requests call the model."""
        return (self.serve.name or self.serve.model) if self.serve.model else self.endpoint.name


@dataclass(frozen=True)
class DistillConfig:
    runs: int | None = None
    """Team runs; None plays each training task of a file once, and WORLD_RUNS of the tiny world's."""
    keep: int = 1_000_000
    """Stop earlier, once so many runs were kept."""
    transcripts: str | None = None
    """Folder or file of transcripts that are there already, imported or of another run; None lets the team work."""
    filters: FilterConfig = field(default_factory=FilterConfig)
    obedience: ObedienceConfig = field(default_factory=ObedienceConfig)
    rewriting: RewriteConfig = field(default_factory=RewriteConfig)
    against: tuple[str, ...] = ()
    """Evaluation sets whose tasks are left out, as `coa evaluate --tasks` names them; the run's own always are."""
    retry_failed: bool = False
    """Whether runs that infrastructure ended are tried once more."""
    most_failed: float = 0.1
    """Share of the runs that infrastructure may have ended for good, for fine-tuning to begin without them."""

    WORLD_RUNS: ClassVar[int] = 10_000

    def runs_of(self, tasks: int | None) -> int:
        """Runs of a team at a file of so many training tasks, or at the tiny world's."""
        if self.runs is not None:
            return self.runs
        return self.WORLD_RUNS if tasks is None else tasks


@dataclass(frozen=True)
class SftConfig:
    steps: int | None = None
    """None where `epochs` says it; where neither is set, DEFAULT_STEPS."""
    epochs: float | None = None
    """Passes over the demonstrations, in place of `steps`; 2.5 sees half of them a third time."""
    batch: int = 64
    """Demonstrations of a step."""
    max_tokens: int | None = None
    """A demonstration with more is left out; None takes what an episode may have, `agent.limits.max_tokens`."""
    data: tuple[str, ...] = ()
    """What to train on instead of what this run distils: the `data` folder of another run, or released AFM files."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    checkpoint_every: int = 100

    DEFAULT_STEPS: ClassVar[int] = 1000

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("sft.steps and sft.epochs are both set; one of them says how long to train")
        for name in ("steps", "epochs", "batch", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"sft.{name} is {value:g}, expected more than 0")

    def steps_of(self, demonstrations: int) -> int:
        """Steps of a stage that has so many demonstrations."""
        if self.epochs is not None:
            return steps_for(demonstrations, self.batch, self.epochs)
        return self.DEFAULT_STEPS if self.steps is None else self.steps


@dataclass(frozen=True)
class RlConfig:
    steps: int = 100
    """Batches; the version at the end."""
    group: int = 8
    """Episodes of one task."""
    window: WindowConfig = field(default_factory=WindowConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    on_policy: OnPolicyConfig = field(default_factory=OnPolicyConfig)
    rescue: RescueConfig = field(default_factory=RescueConfig)
    checkpoint_every: int = 10


@dataclass(frozen=True)
class EvaluationConfig:
    tasks: int = 600
    """Held-out tasks of the tiny world; a user's file brings its own."""
    seed: int = 1
    """Which of the held-out tasks: the same for every run seed."""
    samples: int | None = None
    """Sampled attempts at each task. None here and below: what `coa.benchmarks.protocol` has, the benchmark's own
    protocol where `coa evaluate` meets a benchmark."""
    temperature: float | None = None
    top_p: float | None = None
    patience_s: float = 300.0
    """Seconds of pauses, in all, between attempts at a task while a tool, a judge or an engine is down."""

    def __post_init__(self) -> None:
        """Raises ValueError for what nothing can be sampled with."""
        decoding_of(None, samples=self.samples, temperature=self.temperature, top_p=self.top_p)


@dataclass(frozen=True)
class Recipe:
    seed: int = 0
    run_dir: str = "runs/run"
    session: SessionConfig = field(default_factory=SessionConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    world: WorldConfig = field(default_factory=WorldConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    tools: ToolsConfig = field(default_factory=ToolsConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    models: dict[str, TeacherModelConfig] = field(default_factory=dict)
    """The language models of teachers, by the names that `team` calls them."""
    team: TeamConfig = field(default_factory=TeamConfig)
    teaching: TeachingConfig = field(default_factory=TeachingConfig)
    experts: ExpertConfig = field(default_factory=ExpertConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    rl: RlConfig = field(default_factory=RlConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
