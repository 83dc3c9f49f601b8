"""What a recipe can say: one frozen tree of the dataclasses that stand beside what they tune."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from actors.learner.config import LearnerConfig, ModelConfig, Objective
from actors.rollout.config import EngineConfig, SamplingConfig
from actors.teachers.model_server import ModelServerConfig
from actors.teachers.team import TeachingConfig
from actors.tools.executor import ExecutorConfig
from actors.weights.transport import WeightsConfig
from cluster.health import PoolConfig
from cluster.resources import PlacementConfig
from cluster.session import SessionConfig
from coa.agent.episode import AgentConfig
from coa.distill.fallback import FallbackConfig
from coa.distill.filters import FilterConfig
from coa.distill.obedience import ObedienceConfig
from coa.distill.rewrite import RewriteConfig
from coa.errors import UserError
from coa.grading.rewards import RewardConfig
from coa.grading.toolset import ToolsConfig
from coa.learning.algorithms import DEFAULT, ON_POLICY, make
from coa.learning.algorithms.base import Algorithm
from coa.learning.algorithms.on_policy import OnPolicyConfig
from coa.learning.schedule import steps_for
from coa.learning.window import WindowConfig
from coa.llm.client import EndpointConfig
from coa.reporting.wandb_sink import WandbConfig
from coa.serving.config import ServingConfig
from coa.tasks.file_tasks import TasksConfig
from coa.tasks.published.protocol import decoding_of
from coa.tasks.selection import SelectionConfig
from coa.tasks.worlds import Settings, settings_of
from coa.teams.teams import TeamConfig


@dataclass(frozen=True)
class TeacherModelConfig:
    """A language model that teachers think with: behind an endpoint, or served in the cluster for the stage."""

    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    serve: ModelServerConfig = field(default_factory=ModelServerConfig)
    """If it names a model, that model is served, and `endpoint` needs no `url`."""

    @property
    def name(self) -> str:
        """The model's name in requests."""
        return (self.serve.name or self.serve.model) if self.serve.model else self.endpoint.name


@dataclass(frozen=True)
class DistillConfig:
    runs: int | None = None
    """Number of team runs; None takes the world's number, which for a file is one for each training task."""
    keep: int = 1_000_000
    """Number of kept runs at which distillation stops early."""
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


@dataclass(frozen=True)
class SftConfig:
    steps: int | None = None
    """None if `epochs` is set; if neither is, DEFAULT_STEPS."""
    epochs: float | None = None
    """Passes over the demonstrations, in place of `steps`; 2.5 sees half of them a third time."""
    batch: int = 64
    """Demonstrations of a step."""
    max_tokens: int | None = None
    """A demonstration with more is left out; None takes what an episode may have, `agent.limits.max_tokens`."""
    data: tuple[str, ...] = ()
    """Data sets to train on instead of distilled ones: the `data` folder of another run, or released AFM files."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    checkpoint_every: int = 100
    """Steps between two checkpoints of fine-tuning."""

    DEFAULT_STEPS: ClassVar[int] = 1000

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("sft.steps and sft.epochs are both set; one of them says how long to train")
        for name in ("steps", "epochs", "batch", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"sft.{name} is {value:g}, expected more than 0")

    def steps_of(self, demonstrations: int) -> int:
        """Number of steps for that number of demonstrations."""
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
    short_steps: int = 0
    """Versions in which episodes are admitted with `short_tokens`, before they have `agent.limits.max_tokens`; 0 has
    none."""
    short_tokens: int = 0
    """Most tokens of an episode at first; not above `agent.limits.max_tokens`, which engines are started at."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    algorithm: str = DEFAULT
    """The learning algorithm: a key of `coa.learning.algorithms.ALGORITHMS`. It is on_policy if `on_policy` names a
    teacher."""
    algorithm_settings: dict[str, Any] = field(default_factory=dict)
    """The algorithm's own, by the names in its file; what several share is in `learner.loss`."""
    mask_truncated: bool = False
    """Leaves episodes that ran out of tokens out of what is learnt from (DAPO's overlong filtering): their reward says
    more of the limit than of what they did. They still count in the group that the others are compared with."""
    on_policy: OnPolicyConfig = field(default_factory=OnPolicyConfig)
    teacher_fallback: FallbackConfig = field(default_factory=FallbackConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    """How new weights get to the engines."""
    checkpoint_every: int = 10
    """Steps between two checkpoints of reinforcement."""
    keep_batches: bool = True
    """Whether each batch is recorded, beside training, so that `coa replay` can train it again."""
    evaluate_every: int = 0
    """Versions between two evaluations on held-out tasks beside the loop, the first of them before the first step; 0
    has none."""
    evaluate_tasks: int = 64
    """Held-out tasks of such an evaluation, always the same, each attempted once and greedily."""

    RENAMED: ClassVar[dict[str, str]] = {"rescue": "teacher_fallback"}

    def __post_init__(self) -> None:
        if self.evaluate_every < 0 or self.evaluate_tasks < 1:
            given = f"{self.evaluate_every} and {self.evaluate_tasks}"
            raise ValueError(f"rl.evaluate_every and rl.evaluate_tasks are {given}, expected at least 0 and 1")
        if (self.short_tokens > 0) != (self.short_steps > 0):
            raise ValueError("rl.short_steps and rl.short_tokens are one without the other, expected both or neither")

    def objective(self) -> Objective:
        """The learners' objective. Raises UserError if `rl.on_policy.teacher` and `rl.algorithm` contradict each
        other."""
        weighed, name = self.on_policy.teacher is not None, self.algorithm
        if weighed and name == DEFAULT:
            name = ON_POLICY
        if weighed != (name == ON_POLICY):
            raise UserError(f"rl.algorithm={self.algorithm}: a teacher in rl.on_policy.teacher goes with {ON_POLICY}")
        return Objective(algorithm=name, settings=self.algorithm_settings, temperature=self.sampling.temperature)

    def algorithm_of(self) -> Algorithm:
        """The algorithm itself; raises UserError for an unknown name or setting."""
        objective = self.objective()
        return make(objective.algorithm, self.learner.loss, objective.settings)


@dataclass(frozen=True)
class EvaluationConfig:
    tasks: int = 600
    """Number of held-out tasks of a world without an end. Of a file (`tasks.path`) all held-out tasks are evaluated."""
    seed: int = 1
    """Which of a world's held-out tasks: the same for every run seed. Without effect with `tasks.path`."""
    samples: int | None = None
    """Sampled attempts at each task. None here and below: what `coa.tasks.published.protocol` has, the benchmark's own
    protocol if `coa evaluate` attempts a benchmark."""
    temperature: float | None = None
    """Of the sampled attempts."""
    top_p: float | None = None
    """Nucleus sampling of the sampled attempts."""
    patience_s: float = 300.0
    """Seconds of pauses, in all, between attempts at a task while a tool, a judge or an engine is down."""

    def __post_init__(self) -> None:
        """Raises ValueError for what nothing can be sampled with."""
        decoding_of(None, samples=self.samples, temperature=self.temperature, top_p=self.top_p)


@dataclass(frozen=True)
class Recipe:
    seed: int = 0
    """Of everything that is random in a run: its tasks, samples, and a new model's weights."""
    run_dir: str = "runs/run"
    """Folder of all that the run makes; the same folder resumes it."""
    serving: ServingConfig = field(default_factory=ServingConfig)
    session: SessionConfig = field(default_factory=SessionConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    world: Settings = field(default_factory=Settings)
    """The settings of the world that `tasks.world` names."""
    tasks: TasksConfig = field(default_factory=TasksConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    tools: ToolsConfig = field(default_factory=ToolsConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    models: dict[str, TeacherModelConfig] = field(default_factory=dict)
    """The language models of teachers, by the names that `team` calls them."""
    team: TeamConfig = field(default_factory=TeamConfig)
    teaching: TeachingConfig = field(default_factory=TeachingConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    rl: RlConfig = field(default_factory=RlConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)

    CHOSEN: ClassVar = {"world": ("tasks.world", settings_of)}
    RENAMED: ClassVar = {"experts": "world.experts"}
