"""`coa serve` from the command line: real engine, real HTTP, the clients that people use."""

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import httpx
import psutil
import pytest
from openresponses_types.types import ResponseResource

from coa.agent.episode import AgentConfig, Grammar, Limits
from jobs.run.agent_file import write_agent
from tests.actors.serving.test_open_responses import CASES, IMAGE
from tests.project.test_docs import ROOT, blocks
from tests.support.browser import CHROMIUM, browsing
from tests.support.patience import PATIENCE_S, soon
from tests.support.ports import free_port
from tests.support.tiny import make_model

READY_S = 2 * PATIENCE_S
AGENT = AgentConfig(
    instructed=False,
    grammar=Grammar.enforce,
    limits=Limits(max_turns=3, max_turn_tokens=96, max_observation_tokens=32, max_tokens=448, max_tag_tokens=8),
)
"""An untrained model answers, since the grammar leaves it nothing else."""
SMALL = ("serving.profile=code", "engine.kv_cache_gib=0.25", "placement.engine_cpus=0.5", "placement.tool_cpus=0.25")
ASKED = [{"role": "user", "content": "How many cups remain ?"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("serve") / "demo" / "model")
    write_agent(folder, AGENT)
    return folder


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    """The address of a server that runs for all tests of this file."""
    with serving(model, "out") as (address, _):
        yield address


@contextmanager
def serving(
    model: Path,
    out: str,
    *more: str,
    what: str = "--model",
    settings: Sequence[str] = SMALL,
    env: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, int]]:
    """The address of a server, and the id of its process. model: with `what` set to `--follow`, the folder of a run.
    more: further settings. env: further variables."""
    port = free_port()
    words = ["serve", what, str(model), "--out", str(model.parent / out), f"serving.port={port}"]
    with (model.parent / f"{out}.log").open("w") as log:
        command = [sys.executable, "-m", "jobs.cli", *words, *settings, *more]
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(env or {})})
        address = f"http://127.0.0.1:{port}"
        try:
            wait_until_ready(server, address, model.parent / f"{out}.log")
            yield address, server.pid
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(READY_S) == 0


def wait_until_ready(server: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    def is_ready() -> bool:
        assert server.poll() is None, log.read_text()
        with suppress(httpx.TransportError):
            return httpx.get(f"{address}/readyz", timeout=READY_S).status_code == 200
        return False

    assert soon(is_ready), log.read_text()


def test_what_the_documents_print_runs_as_it_is(url: str) -> None:
    readme, serving = ROOT / "README.md", ROOT / "docs" / "serving.md"
    [curl] = blocks(readme, "bash")
    clients = [block for page in (readme, serving) for block in blocks(page, "python") if "base_url" in block]
    assert len(clients) == 2
    for command in (["bash", "-c", at(url, curl)], *([sys.executable, "-c", at(url, client)] for client in clients)):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=READY_S)
        assert done.returncode == 0, done.stderr
        assert "error" not in done.stdout
        assert done.stdout.strip()


def at(url: str, text: str) -> str:
    """A snippet whose server is this one."""
    assert "http://127.0.0.1:8000" in text
    return text.replace("http://127.0.0.1:8000", url)


def test_openais_client_chats_with_the_agent_and_with_the_model_alone(url: str) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    whole: Any = client.chat.completions.create(model="demo", messages=ASKED, seed=3)  # type: ignore[arg-type]
    assert whole.choices[0].finish_reason in ("stop", "length")
    stream: Any = client.chat.completions.create(model="demo", messages=ASKED, seed=3, stream=True)  # type: ignore[call-overload]
    chunks = [chunk.choices[0].delta for chunk in stream]
    assert "".join(delta.content or "" for delta in chunks) == whole.choices[0].message.content
    assert "".join(getattr(delta, "reasoning", "") or "" for delta in chunks) == whole.choices[0].message.reasoning
    plain: Any = client.chat.completions.create(model="demo:plain", messages=ASKED, max_tokens=5, logprobs=True)  # type: ignore[arg-type]
    assert plain.usage.completion_tokens == 5
    assert len(plain.choices[0].logprobs.content) == 5


def test_openais_client_reads_the_responses_of_both(url: str) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    whole = client.responses.create(model="demo", input="How many cups remain ?")
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    kinds = [event.type for event in client.responses.create(model="demo", input="How many ?", stream=True)]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    plain = client.responses.create(model="demo:plain", input="How many ?", max_output_tokens=5)
    assert plain.usage is not None
    assert plain.usage.output_tokens == 5
    assert plain.status == "incomplete"


def test_anthropics_client_gets_messages_of_both(url: str) -> None:
    from anthropic import Anthropic

    client = Anthropic(base_url=url, api_key="none")
    agent: Any = client.messages.create(model="demo", max_tokens=96, messages=ASKED)  # type: ignore[arg-type]
    tools = {"server_tool_use", "code_execution_tool_result"}
    assert {block.type for block in agent.content} <= {"thinking", "text", *tools}
    plain: Any = client.messages.create(model="demo:plain", max_tokens=5, messages=ASKED)  # type: ignore[arg-type]
    assert plain.usage.output_tokens == 5


def greedy(model: Path, words: str, tokens: int) -> str:
    """What transformers generates."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, policy = AutoTokenizer.from_pretrained(model), cast("Any", AutoModelForCausalLM).from_pretrained(model)
    prompt: Any = tokenizer.apply_chat_template(
        [{"role": "user", "content": words}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        ids = policy.generate(**prompt, max_new_tokens=tokens, do_sample=False, eos_token_id=None)
    return tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def greedily(name: str, words: str, tokens: int) -> dict[str, Any]:
    """The request for the same."""
    asked = [{"role": "user", "content": words}]
    return {"model": f"{name}:plain", "messages": asked, "temperature": 0, "max_tokens": tokens, "ignore_eos": True}


def test_the_model_alone_says_what_transformers_generates(url: str, model: Path) -> None:
    for words in ("A shop gets 12 boxes", "How many cups remain ?", "sells 14"):
        answer = httpx.post(f"{url}/v1/chat/completions", json=greedily("demo", words, 12), timeout=READY_S).json()
        assert answer["choices"][0]["message"]["content"] == greedy(model, words, 12)


def test_a_mistake_in_a_request_for_the_model_alone_is_told(url: str) -> None:
    for body, told in (
        ({"messages": ASKED, "max_tokens": 10**9}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "cups " * 5000}]}, "maximum context length"),
        ({"messages": ASKED, "temperature": -1}, "temperature"),
    ):
        answer = httpx.post(f"{url}/v1/chat/completions", json={"model": "demo:plain", **body}, timeout=READY_S)
        assert answer.status_code == 400, answer.text
        assert told in answer.json()["error"]["message"]


def test_64_seeded_requests_at_once_are_all_answered_and_alike(url: str) -> None:
    async def go() -> set[str]:
        async with httpx.AsyncClient(base_url=url, timeout=READY_S) as client:
            body = {"model": "demo", "messages": ASKED, "seed": 7, "temperature": 1.0}
            answers = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for _ in range(64)))
        assert {answer.status_code for answer in answers} == {200}
        return {json.dumps(answer.json()["choices"][0]["message"]) for answer in answers}

    [message] = asyncio.run(go())
    assert "<code>" not in message, "64 programs at once on a busy machine may run into their time limit"


def test_a_client_that_leaves_ends_its_episode(url: str) -> None:
    async def go() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=READY_S) as client:
            body = {"model": "demo", "messages": ASKED, "stream": True, "temperature": 1.0}

            async def leave() -> None:
                async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                    async for _ in answer.aiter_lines():
                        return

            await asyncio.gather(*(leave() for _ in range(16)))
            async with asyncio.timeout(PATIENCE_S):
                while (await client.get("/v1/load")).json()["episodes"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    asyncio.run(go())


def test_an_image_is_refused_by_vllms_own_handler(url: str) -> None:
    for case in (CASES["basic text"][0], IMAGE):
        body = {"model": "demo:plain", **case, "max_output_tokens": 4}
        answer = httpx.post(f"{url}/v1/responses", json=body, timeout=READY_S)
        if case is IMAGE:
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["type"] == "invalid_request_error"
        else:
            assert ResponseResource.model_validate(answer.json()).model == "demo:plain"


def test_a_response_in_the_background_is_cancelled_and_leaves_nothing(url: str) -> None:
    with httpx.Client(base_url=url, timeout=READY_S) as client:
        for model in ("demo", "demo:plain"):
            body = {"model": model, "input": "How many cups remain ?", "background": True, "temperature": 1.0}
            begun = client.post("/v1/responses", json=body).json()
            assert begun["status"] == "queued"
            cancelled = client.post(f"/v1/responses/{begun['id']}/cancel").json()
            assert cancelled["status"] in ("cancelled", "completed", "incomplete")
            assert client.get(f"/v1/responses/{begun['id']}").json() == cancelled
        assert soon(lambda: not client.get("/v1/load").json()["episodes"])


def test_idle_connections_hold_up_nobody(url: str) -> None:
    port = int(url.rpartition(":")[2])
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(1000)]
    try:
        body = {"model": "demo:plain", "messages": ASKED, "max_tokens": 2}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=READY_S).status_code == 200
    finally:
        for client in idle:
            client.close()


def processes(server: int, name: str) -> list[psutil.Process]:
    """The server's processes with this in their title."""
    found: list[psutil.Process] = []
    for one in psutil.Process(server).children(recursive=True):
        with suppress(psutil.Error):  # programs of the sandbox come and go
            found += [one] if name in "".join(one.cmdline()) else []
    return found


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["ServeReplica:coa:afm", "EngineCore"])
def test_a_stream_outlives_its_engine(model: Path, victim: str) -> None:
    body = {"model": "demo", "messages": ASKED, "stream": True, "temperature": 0.0, "coa": {"detail": "all"}}
    small = {"model": "demo:plain", "messages": ASKED, "max_tokens": 2}

    def text_of(lines: Iterable[str]) -> str:
        found = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert not any("error" in event for event in found), found
        told = [event["choices"][0]["delta"] for event in found if event["choices"]]
        return "".join(one.get("reasoning_content", "") + (one.get("content") or "") for one in told)

    with serving(model, f"killed-{victim[:3]}") as (address, pid):
        with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=READY_S) as answer:
            whole = text_of(answer.iter_lines())
        with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=READY_S) as answer:
            lines = answer.iter_lines()
            heard = list(itertools.islice(lines, 8))
            [dying] = processes(pid, victim)
            assert dying.nice() == psutil.Process(pid).nice(), "it gives way to no other program of the machine"
            dying.kill()
            heard += lines
        assert text_of(heard) == whole
        assert ": the engine has ended, and another one goes on" in heard
        assert heard[-2:] == ["data: [DONE]", ""]

        plain = {"model": "demo:plain", "messages": ASKED, "stream": True, "max_tokens": 300, "ignore_eos": True}
        with httpx.stream("POST", f"{address}/v1/chat/completions", json=plain, timeout=READY_S) as answer:
            lines = answer.iter_lines()
            heard = list(itertools.islice(lines, 8))
            [dying] = processes(pid, victim)
            dying.kill()
            heard += lines
        assert text_of(heard)
        assert ": the engine has ended, and another one goes on" in heard
        assert heard[-2:] == ["data: [DONE]", ""]
        assert httpx.post(f"{address}/v1/chat/completions", json=small, timeout=READY_S).status_code == 200


def test_port_that_is_taken_is_a_mistake(url: str, model: Path) -> None:
    port = url.rpartition(":")[2]
    words = ["serve", "--model", str(model), "--out", str(model.parent / "second"), f"serving.port={port}"]
    done = subprocess.run([sys.executable, "-m", "jobs.cli", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"coa: port {port} of 127.0.0.1 is taken"


@pytest.fixture
def page(url: str) -> Iterator[Any]:
    with browsing(url) as page:
        yield page


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_page_shows_the_chain_of_an_answer_and_is_used_from_the_keyboard(page: Any) -> None:
    page.keyboard.type("How many cups remain ?")
    page.keyboard.press("Enter")
    page.wait_for_selector(".foot .used", timeout=1000 * READY_S)
    assert page.text_content(".question") == "How many cups remain ?"
    roles = [step.get_attribute("data-role") for step in page.query_selector_all(".step")]
    assert roles
    assert "tokens" in page.text_content(".step .cost")
    assert page.evaluate("document.activeElement.id") == "question"
    assert page.evaluate("document.documentElement.scrollWidth") <= 400, "nothing is wider than a phone"
    page.click(".again")
    page.locator(".foot").nth(1).wait_for(timeout=1000 * READY_S)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_an_answer_is_stopped_with_escape(page: Any) -> None:
    page.fill("#temperature", "1")
    page.route("**/v1/responses", lambda _: None)  # it is under way until it is stopped
    page.fill("#question", "How many cups remain ?")
    page.press("#question", "Enter")
    page.wait_for_selector("#stop", state="visible")
    page.keyboard.press("Escape")
    page.wait_for_selector(".fault")
    assert page.text_content(".fault") == "stopped"
    page.wait_for_selector("#send", state="visible")
