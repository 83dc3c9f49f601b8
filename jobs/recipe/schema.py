"""The recipe: one frozen tree of settings, whose dataclasses stand beside the code that they configure."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le

from actors.learner.config import LearnerConfig, ModelConfig, Objective, RlLearnerConfig
from actors.rollout.config import EngineConfig, SamplingConfig
from actors.teachers.model_server import ModelServerConfig
from actors.teachers.team import TeachingConfig
from actors.tools.executor import ExecutorConfig
from actors.weights.transport import WeightsConfig
from cluster.health import PoolConfig
from cluster.resources import PlacementConfig
from cluster.session import SessionConfig
from coa.agent.episode import AgentConfig
from coa.bounds import Above0, AnyInt, AtLeast1, PositiveShare, Share
from coa.distill.fallback import FallbackConfig
from coa.distill.obedience import ObedienceConfig
from coa.distill.rewrite import RewriteConfig
from coa.distill.stages import FilterConfig
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
from coa.tasks.selection import SelectionConfig
from coa.tasks.worlds import Settings, settings_of
from coa.teams.teams import TeamConfig

SEEDS = 2**63
"""Number of the seeds that NumPy, PyTorch and the servers of models take alike."""


@dataclass(frozen=True)
class TeacherModelConfig:
    """A language model for teachers and reviewers: behind an endpoint, or served in the cluster during the stage."""

    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    """The model's endpoint: its address, and the limits and sampling parameters of requests."""
    serve: ModelServerConfig = field(default_factory=ModelServerConfig)
    """A model that vLLM serves in the cluster during the stage. Set either `serve.model` or `endpoint.url`."""

    @property
    def name(self) -> str:
        """The model's name in requests."""
        return (self.serve.name or self.serve.model) if self.serve.model else self.endpoint.name


@dataclass(frozen=True)
class DistillConfig:
    """Distillation: which team runs become demonstrations."""

    runs: AtLeast1 | None = None
    """Number of team runs. None takes the world's default or, with a tasks file, one run per training task. If there
    are more runs than tasks, tasks are tried several times."""
    keep: AtLeast1 = 1_000_000
    """Number of kept team runs at which distillation ends early."""
    transcripts: str | None = None
    """Folder or file of existing transcripts (imported, or of another run) to use instead of team runs. None runs the
    team."""
    filters: FilterConfig = field(default_factory=FilterConfig)
    """Filters that drop team runs. Defaults are from the paper, except `keep_without_reflection` and
    `correction_copies`, for which it gives no value."""
    obedience: ObedienceConfig = field(default_factory=ObedienceConfig)
    """A language model as judge: runs in which agents disobey their instructions are dropped."""
    rewriting: RewriteConfig = field(default_factory=RewriteConfig)
    """A language model that improves the wording of reflections and checks."""
    against: tuple[str, ...] = ()
    """Evaluation sets whose tasks are removed from the training data, as names or paths that `coa evaluate --tasks`
    accepts. The run's own held-out tasks are always removed."""
    retry_failed: bool = False
    """Whether team runs that an infrastructure failure ended after all retries are run again (`--retry-failed`)."""
    most_failed: Share = 0.1
    """Maximum fraction of team runs that may fail because of infrastructure failures; above it, fine-tuning does not
    start."""

    PATHS: ClassVar = ("transcripts", "against")


@dataclass(frozen=True)
class SftConfig:
    """Supervised fine-tuning on demonstrations."""

    steps: int | None = None
    """Number of training steps. None derives it from `epochs`, or takes 1000 if `epochs` is not set either. Set only
    one of `steps` and `epochs`. 0 leaves distillation and fine-tuning out, whatever `epochs` is: RL begins at
    `model.path`."""
    epochs: Above0 | None = None
    """Number of passes over the demonstrations, instead of `steps`. With 2.5, half of them are seen a third time."""
    batch: AtLeast1 = 64
    """Batch size: demonstrations per step."""
    max_tokens: AtLeast1 | None = None
    """Maximum length of a demonstration in tokens; longer ones are left out. None takes `agent.limits.max_tokens`."""
    data: tuple[str, ...] = ()
    """Data sets to train on instead of distilling: `data` folders of other runs, released AFM files, or files of
    messages (OpenAI, ShareGPT, Alpaca)."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    checkpoint_every: AtLeast1 = 100
    """Number of steps between two checkpoints."""

    DEFAULT_STEPS: ClassVar[int] = 1000

    PATHS: ClassVar = ("data",)

    def __post_init__(self) -> None:
        if self.steps and self.epochs is not None:
            raise ValueError("steps and epochs are both set; set only one of them")

    @property
    def skipped(self) -> bool:
        """Whether the initial policy is the model of the recipe as it is."""
        return self.steps == 0

    def steps_of(self, demonstrations: int) -> int:
        """Number of steps for that number of demonstrations."""
        if self.epochs is not None:
            return steps_for(demonstrations, self.batch, self.epochs)
        return self.DEFAULT_STEPS if self.steps is None else self.steps


@dataclass(frozen=True)
class RlConfig:
    """Reinforcement learning (RL)."""

    steps: int = 100
    """Number of training steps, each on one batch, and thus the number of the last weight version."""
    group: AtLeast1 = 8
    """Group size: number of episodes sampled per task. Group-relative algorithms compare their rewards."""
    window: WindowConfig = field(default_factory=WindowConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Sampling of the policy's episodes."""
    short_steps: int = 0
    """Number of initial weight versions whose episodes are limited to `short_tokens` tokens instead of
    `agent.limits.max_tokens`; 0 disables this limit."""
    short_tokens: int = 0
    """Maximum length of an episode in tokens during the first `short_steps` weight versions; must not exceed
    `agent.limits.max_tokens`."""
    learner: RlLearnerConfig = field(default_factory=RlLearnerConfig)
    algorithm: str = DEFAULT
    """Name of the RL algorithm (docs/algorithms.md). If `on_policy.teacher` is set, the default becomes on_policy, and
    no other algorithm is allowed."""
    algorithm_settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the algorithm, by their names in docs/algorithms.md. Settings that several algorithms share are in
    `learner.loss`."""
    mask_truncated: bool = False
    """Whether episodes that ran out of tokens are left out of the loss (DAPO's overlong filtering). Their rewards still
    count in their group's baseline."""
    on_policy: OnPolicyConfig = field(default_factory=OnPolicyConfig)
    teacher_fallback: FallbackConfig = field(default_factory=FallbackConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    """How new weights are transferred to the engines."""
    checkpoint_every: AtLeast1 = 10
    """Number of steps between two checkpoints."""
    keep_batches: bool = True
    """Whether each training batch is recorded on disk, so that `coa verify --replay` can train on it again."""
    evaluate_every: int = 0
    """Number of weight versions between two evaluations on held-out tasks during training; the first runs before the
    first step. 0 disables these evaluations."""
    evaluate_tasks: AtLeast1 = 64
    """Number of held-out tasks per evaluation during training (`evaluate_every`): always the same tasks, with one
    greedy attempt each."""

    def __post_init__(self) -> None:
        if (self.short_tokens > 0) != (self.short_steps > 0):
            raise ValueError("short_steps and short_tokens are set only together")

    def objective(self) -> Objective:
        """The learners' objective. Raises UserError if `rl.on_policy.teacher` and `rl.algorithm` contradict each
        other."""
        weighed, name = self.on_policy.teacher is not None, self.algorithm
        if weighed and name == DEFAULT:
            name = ON_POLICY
        if weighed != (name == ON_POLICY):
            raise UserError(
                f"rl.algorithm={self.algorithm}: {ON_POLICY} needs rl.on_policy.teacher, and no other algorithm uses it"
            )
        return Objective(algorithm=name, settings=self.algorithm_settings, temperature=self.sampling.temperature)

    def algorithm_of(self) -> Algorithm:
        """The algorithm itself; raises UserError for an unknown name or setting."""
        objective = self.objective()
        return make(objective.algorithm, self.learner.loss, objective.settings)


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation on held-out tasks."""

    tasks: AtLeast1 | None = None
    """Number of held-out tasks to evaluate on. None takes all of a tasks file, and 600 of a world."""
    seed: AnyInt = 1
    """Seed that chooses the world's held-out tasks, independent of the run's seed. Ignored with a tasks file."""
    samples: AtLeast1 | None = None
    """Number of sampled attempts per task. None takes the number in the benchmark's protocol, and 4 for other
    tasks."""
    temperature: float | None = None
    """Sampling temperature of evaluation attempts. None takes the value in the benchmark's protocol, and 1 for other
    tasks. 0 makes one greedy attempt per task."""
    top_p: PositiveShare | None = None
    """Nucleus sampling (top-p) of evaluation attempts. None takes the value in the benchmark's protocol, and 1 for
    other tasks."""
    top_k: Annotated[int, Ge(0)] | None = None
    """Number of the likeliest tokens that are sampled in evaluation attempts (top-k), 0 for all. None takes the value
    in the benchmark's protocol, and 0 for other tasks."""
    max_turns: AtLeast1 | None = None
    """Maximum number of the policy's turns in evaluation attempts. None takes the number in the benchmark's protocol,
    and `agent.limits.max_turns` for other tasks."""
    base: bool = False
    """Whether a pretrained model is evaluated before it is fine-tuned, too; with instructions in its prompts, since it
    has not learnt the form of the agent yet."""
    patience_s: float = 300.0
    """Maximum total pause, in seconds, between retries of a task while a tool, a judge or an engine is down; after
    that, the evaluation fails."""


@dataclass(frozen=True)
class Recipe:
    seed: Annotated[int, Ge(0), Le(SEEDS - 1)] = 0
    """Random seed of a run: for its tasks, its sampling, and the initial weights of a new model."""
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
    """Language models for teachers and reviewers, under names of your choice, to which `team` and `distill` refer."""
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

    PATHS: ClassVar = ("run_dir",)

    @property
    def distils(self) -> bool:
        """Whether teachers' runs become the demonstrations."""
        return not self.sft.data and not self.sft.skipped

    @property
    def evaluates_base(self) -> bool:
        """Whether the pretrained model is evaluated before it is fine-tuned."""
        return self.evaluation.base and self.model.path is not None and not self.sft.skipped

    CHOSEN: ClassVar = {"world": ("tasks.world", settings_of)}
