"""Small tokenizers of the kinds that models have, and chat templates of the layouts that they have."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from coa.agent.grammar import TAGS
from coa.agent.tokenizer import train_tokenizer
from tests.support.fakes import CORPUS

TAG_MARKS = [mark for tag in TAGS.values() for mark in (tag.open, tag.close)]
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|end|>"]
HEADERS = ["<|start|>", "<|channel|>", "<|message|>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = [chr(code) for code in range(33, 127)]
WORDS = ["Vexon", "(the)", "<", "</", "Berg"]
BLANK = "\u2581"
END = "</s>"


def trained(tokenizer: Tokenizer) -> Tokenizer:
    """A byte-level tokenizer, trained."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=[*SPECIAL, *HEADERS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def bytewise(
    normalizer: normalizers.Normalizer | None = None, *, prefix: bool = False, legs: bool = False
) -> Tokenizer:
    """As GPT-2, Qwen and Llama 3. legs: whether a regular expression splits, as theirs does."""
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    whole = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    split = pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"), "isolated")
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        if legs
        else whole
    )
    tokenizer.decoder = decoders.ByteLevel()
    return trained(tokenizer)


def pieces(*known: str, fallback: bool = True) -> Tokenizer:
    """BPE over characters with SentencePiece's blank, without what sets and takes blanks."""
    words = [f"{BLANK}B", f"{BLANK}Be", f"{BLANK}Ber", f"{BLANK}Berg", f"{BLANK}W", f"{BLANK}Wh", f"{BLANK}Who"]
    byte_tokens = BYTES if fallback else []
    names = dict.fromkeys([*SPECIAL, *HEADERS, *byte_tokens, BLANK, *LETTERS, *words, f"{BLANK}<", *known])
    merges = [(word[:-1], word[-1]) for word in [*words, f"{BLANK}<"]]
    model = models.BPE(
        {text: number for number, text in enumerate(names)}, merges, unk_token="<unk>", byte_fallback=fallback
    )
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([*SPECIAL, *HEADERS])
    return tokenizer


def decoder(*, strips: bool) -> decoders.Decoder:
    steps = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)


def metaspace(scheme: str) -> Tokenizer:
    """As Llama 2 and Yi are read by transformers."""
    tokenizer = pieces()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoder(strips=scheme != "never")
    return tokenizer


def prepending(*extra: AddedToken) -> Tokenizer:
    """As Mistral 7B, Zephyr and Phi-3 are written."""
    tokenizer = pieces()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)])
    tokenizer.decoder = decoder(strips=True)
    tokenizer.add_special_tokens(list(extra))
    return tokenizer


def replacing() -> Tokenizer:
    """As Gemma: blanks are replaced, and no text gets one."""
    tokenizer = pieces()
    tokenizer.normalizer = normalizers.Replace(" ", BLANK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoder(strips=False)
    return tokenizer


def unigram(normalizer: normalizers.Normalizer | None, *, fallback: bool) -> Tokenizer:
    known = [*SPECIAL, *HEADERS, *(BYTES if fallback else []), f"{BLANK}answer", "plan", f"{BLANK}Who"]
    vocabulary = [*((text, -2.0) for text in known), *((letter, -9.0) for letter in (BLANK, *LETTERS))]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=fallback))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoder(strips=True) if fallback else decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens([*SPECIAL, *HEADERS])
    return tokenizer


def lossy() -> Tokenizer:
    """Blanks of SentencePiece before a vocabulary of bytes, which has none: as some folders are read."""
    tokenizer = bytewise()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return tokenizer


def wordpieces() -> Tokenizer:
    known = [*SPECIAL, *HEADERS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = Tokenizer(models.WordPiece({text: n for n, text in enumerate(known)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([*SPECIAL, *HEADERS])
    return with_tags(tokenizer, special=False)


def with_tags(tokenizer: Tokenizer, *, special: bool) -> Tokenizer:
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=special) for mark in TAG_MARKS])
    return tokenizer


def with_one_tag(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(["<answer>", "</answer>"])
    return tokenizer


def with_words(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_tokens([AddedToken(word, normalized=True) for word in WORDS])
    return tokenizer


def swallowing(tokenizer: Tokenizer) -> Tokenizer:
    """Marks that take the blanks behind them, as those of Phi-3 do."""
    names = ("<|user|>", "<|assistant|>", "<|end|>")
    tokenizer.add_special_tokens([AddedToken(name, rstrip=True, special=True, normalized=False) for name in names])
    return tokenizer


KINDS: Mapping[str, Callable[[], Tokenizer]] = {
    "bytes": bytewise,
    "bytes, own splits": lambda: bytewise(legs=True),
    "bytes, NFC": lambda: bytewise(normalizers.NFC(), legs=True),
    "bytes, prefix": lambda: bytewise(prefix=True),
    "bytes, tags special": lambda: with_tags(bytewise(), special=True),
    "bytes, tags added": lambda: with_tags(bytewise(), special=False),
    "bytes, one tag special": lambda: with_one_tag(bytewise()),
    "bytes, words added": lambda: with_words(bytewise()),
    "bytes, the demo's": lambda: train_tokenizer(CORPUS, ["Arden"], vocabulary=420),
    "metaspace always": lambda: metaspace("always"),
    "metaspace first": lambda: metaspace("first"),
    "metaspace never": lambda: metaspace("never"),
    "metaspace, tags special": lambda: with_tags(metaspace("always"), special=True),
    "metaspace, one tag special": lambda: with_one_tag(metaspace("first")),
    "metaspace, words added": lambda: with_words(metaspace("always")),
    "prepend": prepending,
    "prepend, tags added": lambda: with_tags(prepending(), special=False),
    "prepend, swallowing": lambda: swallowing(prepending()),
    "replace": replacing,
    "unigram with bytes": lambda: unigram(None, fallback=True),
    "unigram, NFKC": lambda: unigram(normalizers.NFKC(), fallback=True),
    "unigram without bytes": lambda: unigram(None, fallback=False),
    "bytes, NFKC": lambda: bytewise(normalizers.NFKC()),
    "bytes, lower case": lambda: bytewise(normalizers.Lowercase()),
    "bytes, lossy": lossy,
    "words": wordpieces,
}

_CHAT = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
_BEGIN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_TURNS = "{{% for m in messages %}}{{% if m['role'] == 'user' %}}{user}{{% else %}}{said}{{% endif %}}{{% endfor %}}"
LAYOUTS: Mapping[str, str] = {
    "chat marks": _CHAT + _BEGIN,
    "instruction": "<s>" + _TURNS.format(user="[INST] {{ m['content'] }} [/INST]", said=" {{ m['content'] }}</s>"),
    "instruction, tight": "<s>" + _TURNS.format(user="[INST]{{ m['content'] }}[/INST]", said="{{ m['content'] }}</s>"),
    "names": (
        "A chat. "
        + _TURNS.format(user="USER: {{ m['content'] }} ", said="ASSISTANT: {{ m['content'] }}</s>")
        + "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
    ),
    "lines and ends": (
        _TURNS.format(
            user="{{ '<|user|>\n' + m['content'] + '</s>\n' }}",
            said="{{ '<|assistant|>\n' + m['content'] + '</s>\n' }}",
        )
        + "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
    ),
    "marks alone": (
        _TURNS.format(user="<|user|>{{ m['content'] }}<|end|>", said="<|assistant|>{{ m['content'] }}<|end|>")
        + "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    ),
    "nothing before": "{% for m in messages %}{{ m['content'] + '\n' }}{% endfor %}",
    "parts": (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% for p in m['content'] %}{{ p['text'] }}"
        "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}" + _BEGIN
    ),
    "thinking may be switched off": (
        _CHAT + _BEGIN + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n{% endif %}"
    ),
    "begins a thought": _CHAT + _BEGIN + "<think>\n",
    "header unfinished": (
        "{% for m in messages %}<|start|>{{ m['role'] }}{% if m['role'] == 'assistant' %}<|channel|>final{% endif %}"
        "<|message|>{{ m['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    ),
    "twice": "{% for m in messages %}{{ m['content'] + m['content'] }}{% endfor %}" + _BEGIN,
    "raises": "{{ raise_exception('tools are needed') }}",
    "broken": "{% for m in messages %}{{ m['content'] }}",
}


def write(tokenizer: Tokenizer, folder: Path, template: str | None) -> Path:
    """A model's folder without the model."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "clean_up_tokenization_spaces": False}
    if tokenizer.token_to_id(END) is None:
        config["eos_token"] = "<|im_end|>"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text("{}")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
