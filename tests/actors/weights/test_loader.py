"""An engine's weights, with real vLLM inside: whatever is wrong with them is found before the engine serves."""

import asyncio
import functools
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from actors.weights.checks.path_check import check_path, difference, kinds, probe_tokens
from actors.weights.loader import WeightLoader
from actors.weights.manifest import Manifest, serialise
from actors.weights.on_disk import published_file
from actors.weights.segment import SHARED_MEMORY
from actors.weights.transport import Published
from coa.errors import (
    DamagedWeights,
    IncompleteWeights,
    StaleWeights,
    SyncError,
    WeightsGone,
    WeightsLost,
    WrongVersion,
)
from tests.support.offers import OnlyRank, parts_of, sender_of, store_in
from tests.support.patience import PATIENCE_S
from tests.support.tiny import make_model
from tests.support.weights import prompt_logprobs, start_llm

TOKENS = probe_tokens(100, 128)


class Bench:
    """An engine, its loader, and the weights of its model as a learner has them."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self.model, self.folder = model, folder
        self.state = load_file(model / "model.safetensors")
        self.llm: Any = self.run(self._start())
        self.pauses: list[bool] = []
        self.loader = WeightLoader(self.llm, clear_cache=True, on_pause=self.pauses.append)
        self.version = 0

    async def _start(self) -> Any:
        return start_llm(self.model)

    def run(self, work: Any) -> Any:
        return self.runner.get_loop().run_until_complete(work)

    async def logprobs(self, tokens: Any = TOKENS) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await prompt_logprobs(self.llm, tokens)

    def publish(self, without: str = "") -> tuple[Published, Path]:
        """The next version, some way from the last, in a file in shared memory."""
        self.version += 1
        generator = torch.Generator().manual_seed(self.version)
        for tensor in self.state.values():
            tensor += torch.randn(tensor.shape, generator=generator) * 0.02
        path = self.folder / f"{self.version}.safetensors"
        save_file({name: tensor for name, tensor in self.state.items() if name != without}, path)
        return published_file(self.version, path), path

    def served(self) -> int:
        return int(self.run(self.llm.get_weight_version()))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    import shutil

    torch.set_num_threads(1)
    folder = SHARED_MEMORY / f"coa-test-{os.getpid()}"
    folder.mkdir()
    bench = Bench(make_model(tmp_path_factory.mktemp("model")), folder)
    yield bench
    bench.llm.shutdown()
    bench.runner.close()
    shutil.rmtree(folder)


def test_output_that_follows_its_weights_passes_and_is_as_before(bench: Bench) -> None:
    before = bench.run(bench.logprobs())
    bench.run(check_path(bench.loader, bench.llm, bench.model, bench.logprobs))
    assert np.array_equal(bench.run(bench.logprobs()), before)
    assert bench.loader.refusal is None


class Stale:
    """A loader under which a module keeps the weights that it had first, as a backend may."""

    def __init__(self, loader: WeightLoader, kept: str) -> None:
        self._loader, self._kept = loader, kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    async def update(self, published: Published, *, perturbed: Any = (), **how: Any) -> dict[str, str]:
        really = [name for name in perturbed if self._kept not in name]
        return await self._loader.update(published, perturbed=really, **how)


@pytest.mark.parametrize("module", ["lm_head", "q_norm", "o_proj"])
def test_a_module_that_keeps_old_weights_is_named(module: str, bench: Bench) -> None:
    stale: Any = Stale(bench.loader, module)
    with pytest.raises(StaleWeights, match=rf"{module} changed, log-probs did not"):
        bench.run(check_path(stale, bench.llm, bench.model, bench.logprobs))
    bench.run(check_path(bench.loader, bench.llm, bench.model, bench.logprobs))


def test_a_version_is_loaded_whole_and_served(bench: Bench) -> None:
    before = bench.run(bench.logprobs())
    published, _ = bench.publish()
    bench.pauses.clear()
    pause_s = bench.run(bench.loader.load(bench.version, published))
    assert 0 < pause_s < 20
    assert bench.pauses == [True, False]
    assert bench.served() == bench.version
    assert difference(before, bench.run(bench.logprobs())) > 0.01


def test_a_file_that_was_loaded_may_be_written_over(bench: Bench) -> None:
    published, path = bench.publish()
    bench.run(bench.loader.load(bench.version, published))
    before = bench.run(bench.logprobs())
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert np.array_equal(bench.run(bench.logprobs()), before)


def test_weights_in_memory_are_loaded_as_well(bench: Bench) -> None:
    bench.publish()
    expected = bench.run(bench.logprobs())
    bench.run(bench.loader.load(bench.version, serialise(bench.state)))
    assert difference(expected, bench.run(bench.logprobs())) > 0.01
    assert bench.served() == bench.version


def refused(
    bench: Bench, published: Published, kind: type[SyncError], text: str, *, version: int | None = None
) -> None:
    """Loading fails before the pause, and the engine goes on as it was."""
    served, before = bench.served(), bench.run(bench.logprobs())
    bench.pauses.clear()
    with pytest.raises(kind, match=text) as raised:
        bench.run(bench.loader.load(published.manifest.version if version is None else version, published))
    assert not isinstance(raised.value, WeightsGone)
    assert bench.pauses == []
    assert bench.served() == served
    assert np.array_equal(bench.run(bench.logprobs()), before)


def test_a_flipped_byte_in_shared_memory_is_found_and_the_old_version_goes_on(bench: Bench) -> None:
    published, path = bench.publish()
    with path.open("r+b") as file:
        file.seek(published.place.base + published.manifest.layout.nbytes // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    refused(bench, published, DamagedWeights, "bucket 0 of 1 was changed")


def test_a_missing_bucket_is_found_and_the_old_version_goes_on(bench: Bench) -> None:
    published, path = bench.publish()
    os.truncate(path, path.stat().st_size - 100)
    refused(bench, published, IncompleteWeights, "bytes, not")
    whole = published.manifest
    fewer = replace(published, manifest=Manifest(whole.version, replace(whole.layout, bucket_bytes=1000), ()))
    refused(bench, fewer, SyncError, "bytes, not|0 of")
    path.unlink()
    refused(bench, published, SyncError, "No such file")


def test_another_version_than_was_asked_for_is_found_and_the_old_one_goes_on(bench: Bench) -> None:
    published, _ = bench.publish()
    refused(bench, published, WrongVersion, f"are version {bench.version}, not {bench.version + 1}",
            version=bench.version + 1)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["model.layers.1.self_attn.k_proj.weight", "model.layers.0.post_attention_layernorm.weight", "lm_head.weight"],
)
def test_a_tensor_left_out_is_named_and_nothing_is_served_until_all_are_there(name: str, bench: Bench) -> None:
    published, _ = bench.publish(without=name)
    module = name.removesuffix(".weight").replace("k_proj", "qkv_proj")
    with pytest.raises(WeightsGone, match=f"IncompleteWeights: .*without all of their weights: {module} "):
        bench.run(bench.loader.load(bench.version, published))
    nothing_is_served_until_a_whole_version_is_there(bench)


def nothing_is_served_until_a_whole_version_is_there(bench: Bench) -> None:
    async def ask_and_load() -> Any:
        asked = asyncio.ensure_future(prompt_logprobs(bench.llm, TOKENS))
        done, _ = await asyncio.wait({asked}, timeout=1)
        assert not done
        published, _ = bench.publish()
        await bench.loader.load(bench.version, published)
        return await asked

    late = bench.run(ask_and_load())
    assert bench.served() == bench.version
    assert np.array_equal(bench.run(bench.logprobs()), late)


def test_a_tensor_that_the_engine_has_no_place_for_is_found(bench: Bench) -> None:
    _, path = bench.publish()
    save_file({**bench.state, "model.layers.0.mlp.extra.weight": torch.ones(3)}, path)
    with pytest.raises(WeightsGone):
        bench.run(bench.loader.load(bench.version, published_file(bench.version, path)))
    nothing_is_served_until_a_whole_version_is_there(bench)


def test_an_update_that_was_skipped_is_found_though_the_label_moves(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, _ = bench.publish()

    async def skip(*_: object) -> None:
        pass

    with monkeypatch.context() as patch:
        for step in ("start_weight_update", "update_weights", "finish_weight_update"):
            patch.setattr(bench.llm, step, skip)
        with pytest.raises(
            WeightsGone, match=rf"WrongVersion: worker 0 runs version \d+ .*, not version {bench.version}"
        ):
            bench.run(bench.loader.load(bench.version, published))
    nothing_is_served_until_a_whole_version_is_there(bench)


def test_a_broken_way_is_left_for_the_one_behind_it(bench: Bench) -> None:
    published, path = bench.publish()
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    broken = replace(published, place=replace(published.place, path=str(copy)), fallback=published)
    with copy.open("r+b") as file:
        file.truncate(50)
    bench.run(bench.loader.load(bench.version, broken))
    assert bench.served() == bench.version


def test_weights_come_out_of_the_memory_of_a_rank_and_leave_no_file(bench: Bench, tmp_path: Path) -> None:
    published, path = bench.publish()
    bench.run(bench.loader.load(bench.version, published))
    expected = bench.run(bench.logprobs())
    bench.publish()
    bench.run(bench.loader.load(bench.version, serialise(bench.state)))
    same = load_file(path)
    bench.version += 1
    sender = sender_of(store_in(tmp_path), ranks=OnlyRank(bench.loader._address.node))
    offered = sender.send(parts_of(same.items(), 10_000), bench.version, "1-0")
    bench.run(bench.loader.load(bench.version, offered))
    assert np.array_equal(bench.run(bench.logprobs()), expected)
    assert bench.served() == bench.version
    assert len(sender._offer.taken) == 1
    # What changes under an engine's eyes is not served, and the engine goes on with what it has.
    same["lm_head.weight"].add_(1)
    bench.version += 1
    offered = replace(offered, manifest=replace(offered.manifest, version=bench.version))
    refused(bench, offered, WeightsLost, "not kept any more")
    sender.withdraw()
    assert list(tmp_path.glob("**/*.safetensors")) == []


def make_tied_model(folder: Path) -> Path:
    from transformers import AutoModelForCausalLM

    make_model(folder)
    tied: Any = AutoModelForCausalLM.from_pretrained(folder)
    tied.config.tie_word_embeddings = True
    tied.tie_weights()
    tied.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_tied_output_layer_follows_an_update_and_a_stale_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU the output layer multiplies with a copy of the weight, which vLLM's own update does not renew."""
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # for functions that run in the engine's core
    model = make_tied_model(tmp_path / "tied")

    def leave_stale(_: Any) -> None:
        from actors.weights import vllm_engine

        vllm_engine.kept_here = vllm_engine.refresh_shared  # pyright: ignore[reportAttributeAccessIssue]
        vllm_engine.refresh_shared = lambda model: None

    def refresh_again(_: Any) -> None:
        from actors.weights import vllm_engine

        vllm_engine.refresh_shared = vllm_engine.kept_here  # pyright: ignore[reportAttributeAccessIssue]

    async def main() -> None:
        llm = start_llm(model)
        try:
            loader = WeightLoader(llm, clear_cache=True)
            ask = functools.partial(prompt_logprobs, llm)
            before = await ask(TOKENS)
            await check_path(loader, llm, model, ask)
            assert loader.refusal is None
            assert np.array_equal(await ask(TOKENS), before)
            await llm.collective_rpc(leave_stale)
            with pytest.raises(StaleWeights, match="embed_tokens changed, log-probs did not"):
                await check_path(loader, llm, model, ask)
            await llm.collective_rpc(refresh_again)
            state = dict(load_file(model / "model.safetensors"))
            assert "lm_head.weight" not in state
            state["model.embed_tokens.weight"] *= 1.5
            await loader.load(1, serialise(state))
            assert difference(await ask(TOKENS), tied_logprobs(model, state)) < 1e-4
        finally:
            llm.shutdown()

    asyncio.run(main())


@pytest.mark.slow
def test_a_tied_output_layer_that_is_in_the_file_too_starts_and_takes_no_other_weights(tmp_path: Path) -> None:
    model = make_tied_model(tmp_path / "tied")
    state = dict(load_file(model / "model.safetensors"))
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    save_file(state, model / "model.safetensors", metadata={"format": "pt"})

    async def main() -> None:
        llm = start_llm(model)
        try:
            loader = WeightLoader(llm, clear_cache=True)
            await check_path(loader, llm, model, functools.partial(prompt_logprobs, llm))
            with pytest.raises(StaleWeights, match="holds an output layer that its configuration ties"):
                await loader.load(1, serialise(state))
        finally:
            llm.shutdown()

    asyncio.run(main())


def tied_logprobs(model: Path, state: dict[str, torch.Tensor]) -> Any:
    """Of plain transformers, with these embeddings."""
    from transformers import AutoModelForCausalLM

    changed: Any = AutoModelForCausalLM.from_pretrained(model)
    ids = torch.from_numpy(TOKENS).long()
    with torch.no_grad():
        changed.model.embed_tokens.weight.copy_(state["model.embed_tokens.weight"])
        assert changed.lm_head.weight is changed.model.embed_tokens.weight
        logprobs = changed(input_ids=ids[None]).logits[0, :-1].float().log_softmax(-1)
    return logprobs.gather(-1, ids[1:, None])[:, 0].numpy()


def test_kinds_are_what_layers_have_in_common_and_a_module_is_of_one_kind() -> None:
    took = {
        "model.layers.0.self_attn.q_proj.weight": "model.layers.0.self_attn.qkv_proj.weight",
        "model.layers.5.self_attn.q_proj.weight": "model.layers.5.self_attn.qkv_proj.weight",
        "model.layers.11.self_attn.v_proj.weight": "model.layers.11.self_attn.qkv_proj.weight",
        "model.layers.0.self_attn.q_proj.bias": "model.layers.0.self_attn.qkv_proj.bias",
        "lm_head.weight": "lm_head.weight",
    }
    assert list(kinds(took)) == ["model.layers.*.self_attn.qkv_proj", "lm_head"]
    assert kinds(took)["model.layers.*.self_attn.qkv_proj"] == [
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.11.self_attn.v_proj.weight",
    ], "of the first layer and of the last one"
