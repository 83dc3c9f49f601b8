"""What /openapi.json says is what the server does."""

from typing import Any

import pytest

from tests.support.agent_server import Asking, make_server
from tests.support.runners import SEARCHES, Saying


@pytest.fixture(scope="module")
def asking() -> Asking:
    return Asking(make_server(Saying(*SEARCHES)))


@pytest.fixture(scope="module")
def described(asking: Asking) -> Any:
    return asking.request("GET", "/openapi.json").json()


REQUESTS = {
    "/v1/chat/completions": "CreateChat",
    "/v1/completions": "CreateCompletion",
    "/v1/messages": "CreateMessage",
    "/v1/responses": "CreateResponse",
}


@pytest.mark.parametrize(("path", "name"), REQUESTS.items())
def test_the_examples_of_a_request_are_answered_by_the_models_that_it_names(
    asking: Asking, described: Any, path: str, name: str
) -> None:
    fields = described["components"]["schemas"][name]["properties"]
    assert "afm" in fields["model"]["enum"]
    [said] = [field for field, schema in fields.items() if "examples" in schema]
    required = {"max_tokens": 50} if "max_tokens" in fields else {}
    body = {"model": "afm", said: fields[said]["examples"][0], **required}
    assert asking.post(path, body).status_code == 200


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/v1/chat/completions", {"message", "type", "param", "code"}), ("/v1/messages", {"message", "type"})],
)
def test_errors_have_the_form_that_is_described(asking: Asking, described: Any, path: str, fields: set[str]) -> None:
    schemas = described["components"]["schemas"]
    responses = described["paths"][path]["post"]["responses"]
    assert set(responses) == {"200", "default"}
    whole = schemas[responses["default"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]]
    told = asking.post(path, {}).json()
    assert set(told) == set(whole["required"])
    assert (
        set(told["error"])
        == fields
        == set(schemas[whole["properties"]["error"]["$ref"].rpartition("/")[2]]["required"])
    )
