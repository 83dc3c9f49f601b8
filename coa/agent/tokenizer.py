"""A byte-level BPE tokenizer trained on the run's own text, with tags and chat marks as tokens of their own.

Numbers are split into pairs of digits, and each pair, with the space before it, is one token: a small model learns to
copy a single token much sooner than a sequence of digits. Every word of the world is one token, since merging continues
until every frequent word is one.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from coa.agent.grammar import TAGS

if TYPE_CHECKING:
    import transformers

PAD, BEGIN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], words: Iterable[str], *, vocabulary: int) -> Tokenizer:
    """Trains BPE on `texts`, and on `words` so often that each becomes one token, with and without a space before it.

    `vocabulary` is an upper limit; training ends earlier when nothing frequent is left to merge.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\d{1,2}"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    marks = [mark for tag in TAGS.values() for mark in (tag.open, tag.close)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=20,
        special_tokens=[PAD, BEGIN, END, *marks],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def corpus() -> Iterable[str]:
        yield from texts
        numbers = (f"{number:0{digits}}" for digits in (1, 2) for number in range(10**digits))
        for word in (*sorted(set(words)), *numbers):
            yield f" {word}" * 1000

    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def load_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def save_as_read(tokenizer: "transformers.PreTrainedTokenizerBase", folder: Path) -> None:
    """Writes a tokenizer of transformers so that it is read again as it was: SentencePiece's older way with blanks
    (`legacy`) is a setting that transformers reads and does not save."""
    tokenizer.save_pretrained(folder)
    if (legacy := getattr(tokenizer, "legacy", None)) is not None:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"legacy": legacy}, indent=2))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the folder in Hugging Face layout, as `transformers` and vLLM read it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
