"""An agent with a client of its own: it asks, and then has its draft checked by a second conversation.

coa train --recipe own_tasks tasks.path=questions.jsonl agent.program.function=docs.examples.two_calls:run ...
"""

from openai import AsyncOpenAI


async def run(task: dict[str, str], base_url: str, key: str) -> str:
    client = AsyncOpenAI(base_url=base_url, api_key=key)

    async def say(text: str) -> str:
        answer = await client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": text}], max_tokens=64
        )
        return answer.choices[0].message.content or ""

    draft = await say(task["question"])
    return await say(f"{task['question']}\nA colleague says: {draft}\nWrite the right result, and nothing else.")
