"""The teachers of a recipe before any of them is started."""

from coa.config import load
from jobs.recipe import Recipe
from jobs.teaching import models_told


def test_transcripts_tell_what_each_roles_model_is_called() -> None:
    recipe = load(
        Recipe,
        None,
        [
            "models.strong.endpoint={url: 'http://x/v1', name: gpt-4.1}",
            "models.own.serve.model=Qwen/Qwen3-8B",
            "models.named.serve={model: folder, name: small}",
            "models.idle.endpoint={url: 'http://y/v1', name: nobody}",
            "team.model=own",
            "team.roles={planner: {model: strong}, critic: {model: named}, verifier: {model: ''}}",
        ],
    )
    assert dict(models_told(recipe)) == {
        "planner": "strong: gpt-4.1",
        "critic": "named: small",
        **dict.fromkeys(("coder", "searcher"), "own: Qwen/Qwen3-8B"),
    }
