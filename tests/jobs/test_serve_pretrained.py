"""SmolLM2-135M-Instruct served alone, in float32: in every protocol it says, greedily, what transformers generates."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from tests.jobs.test_serve import free_port, wait_until_ready
from tests.support.smollm import gguf_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        gguf_file() is None, reason="the packages of the model are not installed (scripts/setup_slow.sh)"
    ),
]

TOKENS = 24
PROMPTS = (
    "What is the capital of France ?",
    "Name three animals that live in the sea.",
    "What is 3 * 4 ?",
    "Write a sentence about rain.",
    "Who wrote Hamlet ?",
    "Translate to Spanish: good morning",
    "Count from one to five.",
    "Why is the sky blue ?",
    "What do bees make ?",
    "Give me a rhyme for cat.",
    "How many days has a week ?",
    "What is the opposite of hot ?",
    "Name a city in Japan.",
    "Say hello in German.",
    "What is water made of ?",
    "Is a whale a fish ?",
    "Write a Python line that prints hello.",
    "What colour is a ripe banana ?",
    "Which planet is nearest to the sun ?",
    "Finish the sentence: the quick brown fox",
)
CHAT = {"model": "smollm:plain", "temperature": 0}


@pytest.fixture(scope="module")
def url(smollm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    port, log = free_port(), folder / "log"
    words = [
        "serve",
        "--model",
        str(smollm),
        "--out",
        str(folder / "out"),
        f"serving.port={port}",
        "serving.name=smollm",
    ]
    settings = ["serving.profile=mhqa", "tasks.world=tiny", "agent.limits.max_tokens=512", "engine.kv_cache_gib=1.0"]
    with log.open("w") as file:
        server = subprocess.Popen([sys.executable, "-m", "jobs.cli", *words, *settings], stdout=file, stderr=file)
        try:
            wait_until_ready(server, address := f"http://127.0.0.1:{port}", log)
            yield address
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 0


@pytest.fixture(scope="module")
def generate(smollm: Path) -> Callable[[str, bool], tuple[list[int], str]]:
    """The tokens that transformers adds to a prompt, and their text; as a message of a chat, or as it stands."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm)
    policy = cast("Any", AutoModelForCausalLM).from_pretrained(smollm, dtype=torch.float32)

    def generated(prompt: str, chat: bool) -> tuple[list[int], str]:
        messages = [{"role": "user", "content": prompt}]
        asked: Any = (
            tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
            if chat
            else tokenizer(prompt, return_tensors="pt")
        )
        with torch.no_grad():
            ids = policy.generate(**asked, max_new_tokens=TOKENS, do_sample=False)
        added = ids[0, asked["input_ids"].shape[1] :]
        text = tokenizer.decode(added, skip_special_tokens=True)
        return added.tolist(), text.rstrip("\ufffd")  # a character of which there is only a part is not said

    return generated


def ask(url: str, path: str, bodies: Sequence[dict[str, Any]]) -> list[Any]:
    """The answers to requests that are sent at once."""

    async def go() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=url, timeout=300) as client:
            return await asyncio.gather(*(client.post(path, json=body) for body in bodies))

    answers = asyncio.run(go())
    assert {answer.status_code for answer in answers} == {200}, answers[0].text
    return [answer.json() for answer in answers]


@pytest.fixture(scope="module")
def chats(generate: Callable[[str, bool], tuple[list[int], str]]) -> list[tuple[list[int], str]]:
    return [generate(prompt, True) for prompt in PROMPTS]


def messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def test_chat_completions(url: str, chats: list[tuple[list[int], str]]) -> None:
    body = CHAT | {"max_tokens": TOKENS, "return_token_ids": True}
    answers = ask(url, "/v1/chat/completions", [body | {"messages": messages(prompt)} for prompt in PROMPTS])
    choices = [answer["choices"][0] for answer in answers]
    assert [(one["token_ids"], one["message"]["content"]) for one in choices] == chats


def test_completions(url: str, generate: Callable[[str, bool], tuple[list[int], str]]) -> None:
    body = CHAT | {"max_tokens": TOKENS, "return_token_ids": True}
    answers = ask(url, "/v1/completions", [body | {"prompt": prompt} for prompt in PROMPTS])
    choices = [answer["choices"][0] for answer in answers]
    assert [(one["token_ids"], one["text"]) for one in choices] == [generate(prompt, False) for prompt in PROMPTS]


def test_responses(url: str, chats: list[tuple[list[int], str]]) -> None:
    body = CHAT | {"max_output_tokens": TOKENS}
    answers = ask(url, "/v1/responses", [body | {"input": prompt} for prompt in PROMPTS])
    said = [answer["output"][0]["content"][0]["text"] for answer in answers]
    assert said == [text for _, text in chats]
    assert [answer["usage"]["output_tokens"] for answer in answers] == [len(ids) for ids, _ in chats]


def test_messages(url: str, chats: list[tuple[list[int], str]]) -> None:
    body = CHAT | {"max_tokens": TOKENS}
    answers = ask(url, "/v1/messages", [body | {"messages": messages(prompt)} for prompt in PROMPTS])
    assert [answer["content"][0]["text"] for answer in answers] == [text for _, text in chats]
    assert [answer["usage"]["output_tokens"] for answer in answers] == [len(ids) for ids, _ in chats]
