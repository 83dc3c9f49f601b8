"""Checks before the first stage that models which a recipe names by `NAME` or `OWNER/NAME` can be fetched; otherwise a
missing model would be noticed only after hours of distillation."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from actors.learner.sizes import hub_name
from coa.errors import UserError
from coa.pretrained.weights import is_fetched
from jobs.recipe.needs import is_finished
from jobs.recipe.schema import Recipe

ANSWER_S = 5.0
"""Timeout of a request to the hub, in seconds."""


def hub_models(config: Recipe) -> Iterator[tuple[str, str]]:
    """(key, name) of each hub model that unfinished stages need."""
    named: list[tuple[str, str | None]] = []
    if not (Path(config.run_dir) / "checkpoints" / "start").exists():
        named.append(("model.path", config.model.path))
    if not is_finished(config, "rl"):
        named.append(("rl.on_policy.teacher", config.rl.on_policy.teacher))
    if config.distils and not is_finished(config, "distill"):
        named += [(f"models.{name}.serve.model", model.serve.model) for name, model in config.models.items()]
    yield from ((key, path) for key, path in named if path and hub_name(path))


def require_hub_models(config: Recipe) -> None:
    """Raises UserError for a model that is neither in the cache of this machine nor on the hub."""
    for key, name in hub_models(config):
        require_hub_model(key, name)


def require_hub_model(key: str, name: str) -> None:
    if why := _missing(name):
        raise UserError(f"{key} {name}: there is no such folder, and {why}")


def is_offline() -> bool:
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE


def _missing(name: str) -> str:
    """Why the model can't be fetched; empty if it can, or if the hub's answer does not tell."""
    from huggingface_hub import get_token, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return "no model of the Hugging Face hub can have this name"
    if isinstance(cached, str) and (not is_offline() or is_fetched(Path(cached).parent)):
        return ""
    if is_offline():
        what = "only a part of such a model" if isinstance(cached, str) else "no such model"
        return f"{what} in the cache (HF_HUB_OFFLINE is set, so the Hugging Face hub is not asked)"
    headers = {"Authorization": f"Bearer {token}"} if (token := get_token()) else {}
    request = urllib.request.Request(hf_hub_url(name, "config.json"), headers=headers, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=ANSWER_S).close()
    except urllib.error.HTTPError as error:
        return {
            401: "no such model on the Hugging Face hub, unless it is private (`hf auth login`)",
            403: "the Hugging Face hub gives access only on request: ask for it on the model's page (`hf auth login`)",
            404: "no such model with a config.json on the Hugging Face hub",
        }.get(error.code, "")
    except OSError as error:
        return f"the Hugging Face hub can't be reached: {getattr(error, 'reason', None) or error}"
    return ""
