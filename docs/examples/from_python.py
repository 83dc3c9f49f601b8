"""Trains on rows of one's own with a reward of one's own, evaluates the model, and asks it a question.

python docs/examples/from_python.py        some minutes on two CPU cores
"""

import coa
from coa.types import Task


def close(task: Task, answer: str) -> float:
    """1 for the right number, less for one that is further off."""
    try:
        return 1 / (1 + abs(float(answer) - float(task.answers[0])))
    except ValueError:
        return 0.0


def row(a: int, b: int) -> dict[str, str]:
    return {"question": f"What is {a} * {b} - 4 ?", "answer": str(a * b - 4), "profile": "code"}


SMALL = {"distill": {"runs": 1000}, "sft": {"steps": 250}, "rl": {"steps": 3, "window.groups_per_batch": 8}}

if __name__ == "__main__":  # some parts of a run are processes of their own
    rows = [row(a, b) for a in range(11, 100) for b in range(2, 10)]
    others = [rows.pop(i) for i in range(600, 0, -100)]
    run = coa.train("tiny", tasks=rows, reward=close, run_dir="runs/sums", settings=SMALL)
    print("held out:", run.report["evaluation"]["rl"]["greedy"]["mean"])
    found = coa.evaluate(run.model, tasks=others, reward=close)
    print("six others:", found.results["greedy"]["mean"])
    with coa.load_agent(run.model) as agent:
        answered = agent.ask("What is 17 * 3 - 4 ?")
        print(answered.answer, answered.status, answered.cost.tool_calls, "tool calls")
        print([span.tag for span in answered.chain])
