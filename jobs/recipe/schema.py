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
from coa.storage.keeping import CheckpointsConfig
from coa.tasks.file_tasks import TasksConfig
from coa.tasks.published.protocol import decoding_of
from coa.tasks.selection import SelectionConfig
from coa.tasks.worlds import Settings, settings_of
from coa.teams.teams import TeamConfig


@dataclass(frozen=True)
class TeacherModelConfig:
    """A language model that teachers think with: behind an endpoint, or served in the cluster for the stage."""

    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    """The endpoint of the model, and the limits and sampling of requests to it."""
    serve: ModelServerConfig = field(default_factory=ModelServerConfig)
    """A model that vLLM serves in the cluster during the stage. If `model` is set here, `endpoint` needs no `url`."""

    @property
    def name(self) -> str:
        """The model's name in requests."""
        return (self.serve.name or self.serve.model) if self.serve.model else self.endpoint.name


@dataclass(frozen=True)
class DistillConfig:
    """Distillation: which team runs become demonstrations."""

    runs: int | None = None
    """Number of team runs; None takes the world's number, or for a tasks file one for each training task. More runs
    than tasks give several tries at a task."""
    keep: int = 1_000_000
    """Number of kept runs at which distillation ends early."""
    transcripts: str | None = None
    """Folder or file of existing transcripts (imported, or of another run) to use in place of a team's runs; None lets
    the team play."""
    filters: FilterConfig = field(default_factory=FilterConfig)
    """Which runs are dropped. Defaults are the paper's; it gives no value for `keep_without_reflection` and
    `correction_copies`."""
    obedience: ObedienceConfig = field(default_factory=ObedienceConfig)
    """A language model that drops runs that disobey their instructions."""
    rewriting: RewriteConfig = field(default_factory=RewriteConfig)
    """A language model that improves the wording of reflections and checks."""
    against: tuple[str, ...] = ()
    """Evaluation sets whose tasks are left out, as names or paths like those of `coa evaluate --tasks`. The run's own
    evaluation set is always left out."""
    retry_failed: bool = False
    """Whether runs that failed in every try because a service was down are tried once more (`--retry-failed`)."""
    most_failed: float = 0.1
    """Largest share of runs that may have failed because a service was down; above it, fine-tuning does not begin."""


@dataclass(frozen=True)
class SftConfig:
    """Supervised fine-tuning on demonstrations."""

    steps: int | None = None
    """Number of steps; None takes `epochs`, or 1000 if that is not set either. Set only one of the two."""
    epochs: float | None = None
    """Passes over the demonstrations, in place of `steps`; with 2.5, half of them are seen a third time."""
    batch: int = 64
    """Demonstrations per step."""
    max_tokens: int | None = None
    """Longer demonstrations are left out; None takes `agent.limits.max_tokens`."""
    data: tuple[str, ...] = ()
    """Data sets to train on in place of distilled ones: the `data` folder of another run, or a released AFM file."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    checkpoint_every: int = 100
    """Steps between two checkpoints."""

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
    """Reinforcement learning (RL)."""

    steps: int = 100
    """Number of steps, each on one batch; it is also the number of the last version."""
    group: int = 8
    """Episodes of each task. Their rewards are compared with each other."""
    window: WindowConfig = field(default_factory=WindowConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Sampling of the policy's episodes."""
    short_steps: int = 0
    """Versions during which episodes have at most `short_tokens`, before they have `agent.limits.max_tokens`; 0 for
    none."""
    short_tokens: int = 0
    """Most tokens of an episode during these versions; not above `agent.limits.max_tokens`."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    algorithm: str = DEFAULT
    """Name of the RL algorithm (docs/algorithms.md). If `on_policy.teacher` is set, it is on_policy."""
    algorithm_settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the algorithm, by the names in docs/algorithms.md. Those that several algorithms share are in
    `learner.loss`."""
    mask_truncated: bool = False
    """Whether episodes that ran out of tokens are left out of the loss (DAPO's overlong filtering). Their rewards still
    count in their group's baseline."""
    on_policy: OnPolicyConfig = field(default_factory=OnPolicyConfig)
    teacher_fallback: FallbackConfig = field(default_factory=FallbackConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    """How new weights get to the engines."""
    checkpoint_every: int = 10
    """Steps between two checkpoints."""
    keep_batches: bool = True
    """Whether each batch is recorded, so that `coa replay` can train it again."""
    evaluate_every: int = 0
    """Versions between two evaluations on held-out tasks that run while training goes on; the first runs before the
    first step. 0 for none."""
    evaluate_tasks: int = 64
    """Held-out tasks of such an evaluation: always the same, one greedy attempt each."""

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
    """Evaluation on held-out tasks."""

    tasks: int = 600
    """Number of held-out tasks of a world. Of a tasks file, all held-out tasks are evaluated."""
    seed: int = 1
    """Seed that chooses the world's held-out tasks; it does not depend on the run's seed. Without effect for a tasks
    file."""
    samples: int | None = None
    """Sampled attempts at each task. None takes the number of the benchmark's protocol, and 4 for other tasks."""
    temperature: float | None = None
    """Sampling temperature of these attempts. None takes that of the benchmark's protocol, and 1 for other tasks; 0
    makes one greedy attempt."""
    top_p: float | None = None
    """Nucleus sampling of these attempts. None takes that of the benchmark's protocol, and 1 for other tasks."""
    patience_s: float = 300.0
    """Longest time, in pauses, for which a task is attempted again while a tool, a judge or an engine is down."""

    def __post_init__(self) -> None:
        """Raises ValueError for what nothing can be sampled with."""
        decoding_of(None, samples=self.samples, temperature=self.temperature, top_p=self.top_p)


@dataclass(frozen=True)
class Recipe:
    seed: int = 0
    """Seed of everything random in a run: tasks, sampling, and the weights of a new model."""
    run_dir: str = "runs/run"
    """Folder of the run. The same command with the same folder resumes it."""
    serving: ServingConfig = field(default_factory=ServingConfig)
    session: SessionConfig = field(default_factory=SessionConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    world: Settings = field(default_factory=Settings)
    """Settings of the world that `tasks.world` names."""
    tasks: TasksConfig = field(default_factory=TasksConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    tools: ToolsConfig = field(default_factory=ToolsConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    models: dict[str, TeacherModelConfig] = field(default_factory=dict)
    """Language models of teachers, under names of your own, to which `team` refers."""
    team: TeamConfig = field(default_factory=TeamConfig)
    teaching: TeachingConfig = field(default_factory=TeachingConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    rl: RlConfig = field(default_factory=RlConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    checkpoints: CheckpointsConfig = field(default_factory=CheckpointsConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)

    CHOSEN: ClassVar = {"world": ("tasks.world", settings_of)}
    RENAMED: ClassVar = {"experts": "world.experts"}
