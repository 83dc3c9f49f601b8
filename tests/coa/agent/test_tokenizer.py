"""The tokenizer of a policy that is trained from scratch."""

import json
from pathlib import Path

from coa.agent.grammar import TAGS
from coa.agent.tokenizer import BEGIN, CHAT_TEMPLATE, END, PAD, save_tokenizer, train_tokenizer


def trained(*words: str):
    return train_tokenizer(["the town of Arden"] * 30, words, vocabulary=600)


def test_marks_and_tags_come_first_in_the_vocabulary() -> None:
    tokenizer = trained()
    marks = [PAD, BEGIN, END, *(mark for tag in TAGS.values() for mark in (tag.open, tag.close))]
    assert [tokenizer.id_to_token(i) for i in range(len(marks))] == marks


def test_every_word_that_is_asked_for_is_one_token_after_a_blank() -> None:
    tokenizer = trained("Vexon", "Quillhaven")
    assert tokenizer.encode(" Vexon Quillhaven").tokens == ["ĠVexon", "ĠQuillhaven"]


def test_numbers_are_cut_into_pairs_of_digits_and_each_pair_after_a_space_is_one_token() -> None:
    tokenizer = trained()
    assert tokenizer.encode(" 1234 5").tokens == ["Ġ12", "3", "4", "Ġ5"]
    assert tokenizer.encode(" 905 * 12").tokens == ["Ġ90", "5", "Ġ", "*", "Ġ12"]
    pairs = [f" {n:02}" for n in range(100)]
    assert [tokenizer.encode(pair).tokens for pair in pairs] == [[f"Ġ{pair[1:]}"] for pair in pairs]


def test_any_text_is_spelled_and_comes_back() -> None:
    tokenizer = trained()
    assert tokenizer.decode(tokenizer.encode("é🙂\x00\n").ids) == "é🙂\x00\n"


def test_the_vocabulary_keeps_its_limit_and_ends_early_when_nothing_is_frequent() -> None:
    # Bytes, marks, tags, and after a space the digits and their pairs.
    least = 256 + 3 + 2 * len(TAGS) + 110
    assert train_tokenizer(["rare words"], [], vocabulary=9999).get_vocab_size() == least
    assert train_tokenizer(["the town of Arden"] * 30, [], vocabulary=9999).get_vocab_size() > least
    assert train_tokenizer(["the town of Arden"] * 30, [], vocabulary=300).get_vocab_size() == 300


def test_the_same_texts_give_the_same_tokenizer() -> None:
    assert trained("Vexon", "Arden").to_str() == trained("Arden", "Vexon").to_str()


def test_a_saved_tokenizer_names_its_marks(tmp_path: Path) -> None:
    save_tokenizer(trained(), tmp_path / "model")
    config = json.loads((tmp_path / "model/tokenizer_config.json").read_text())
    assert (config["eos_token"], config["pad_token"], config["bos_token"]) == (END, PAD, None)
    assert config["chat_template"] == CHAT_TEMPLATE == (tmp_path / "model/chat_template.jinja").read_text()
    assert (tmp_path / "model/tokenizer.json").read_text()
