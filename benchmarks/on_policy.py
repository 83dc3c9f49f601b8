"""On-policy distillation after fine-tuning, compared with fine-tuning alone, on the same held-out tasks.

    python -m benchmarks.on_policy --seeds 0 1 2

The teacher is the model of the tiny recipe after RL; it is the same for all seeds. The student has a quarter of its
parameters, is fine-tuned on the same data, and then learns from the teacher's log-probs of its own samples, without any
reward. Takes about six minutes a seed on two cores, and a quarter of an hour for the teacher; an interrupted run is
resumed, and the results of each seed are kept in `results/on_policy/`.
"""

from statistics import fmean

from benchmarks.tiny_runs import RUNS, by_seeds, compared, rates, tiny_run, train

STUDENT = (
    "model.hidden_size=64",
    "model.intermediate_size=128",
    "model.layers=3",
    "model.heads=2",
    "model.key_value_heads=1",
    "sft.steps=400",
)

Seed = dict[str, dict[str, list[float]]]
"""By mode and task: success of the student before and after, and of the teacher."""


def one_seed(seed: int) -> Seed:
    teacher = tiny_run()
    settings = (f"sft.data=[{teacher / 'data'}]", f"rl.on_policy.teacher={teacher / 'model'}")
    student = train(RUNS / "on_policy" / f"student-{seed}", f"seed={seed}", *STUDENT, *settings)
    found: Seed = {}
    for mode in ("greedy", "sampled"):
        sides = [
            rates(run / "trajectories" / f"evaluation-{stage}.parquet", mode)
            for run, stage in ((student, "sft"), (student, "rl"), (teacher, "rl"))
        ]
        found[mode] = {task: [side[task] for side in sides] for task in sides[0]}
    return found


def compare(seeds: list[Seed]) -> dict[str, float]:
    """A task's rate is its mean over seeds; the interval is over tasks, and each seed's difference stands beside it."""
    figures: dict[str, float] = {"seeds": len(seeds)}
    for mode, tasks in seeds[0].items():
        before, after, teacher = (
            [fmean(seed[mode][task][side] for seed in seeds) for task in tasks] for side in range(3)
        )
        figures |= {**compared(mode, after, before), f"{mode}_teacher": fmean(teacher)}
        for number, seed in enumerate(seeds):
            figures[f"{mode}_difference_{number}"] = fmean(rate[1] - rate[0] for rate in seed[mode].values())
    return figures


def main() -> None:
    targets = {"greedy_low": ">= 0", "sampled_low": ">= 0", "sampled_tasks": ">= 500"}
    by_seeds("on_policy", "On-policy distillation, against fine-tuning alone.", one_seed, compare, targets)


if __name__ == "__main__":
    main()
