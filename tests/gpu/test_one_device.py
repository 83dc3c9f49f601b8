"""The learner's arithmetic, its speed, and weights by shared memory of a device: on a GPU with a model of 0.75 billion
parameters, and on a CPU, so that it is the same code, with a tiny one.

    python -m pytest tests/gpu -m gpu -s         prints what is measured

It needs PyTorch, transformers, NumPy, safetensors and pytest; and xxhash, to hand weights over.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from actors.learner.logits import chosen_logprobs
from tests.support import on_device
from tests.support.on_device import LARGE, TINY, Models, apart, flat, objective, packed, plainly, policy_of, singly

ULP = 2**-9
"""Largest relative error of a number that is rounded to bfloat16, which has 8 significant bits."""
NO_WORSE = 1.5
"""Times the error of plain transformers in bfloat16: roundings fall otherwise in packed rows and chunks, and errors of
two runs of one size differ by less than that."""
SUMS = 2e-4
"""Of log-probs in float32 whose sums are in another order: 2**-24, times some hundred for the depth, times about ten
for their size."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(TINY, id="cpu"),
        pytest.param(
            LARGE,
            id="cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; PyTorch finds none"),
            ],
        ),
    ],
)
def models(request: pytest.FixtureRequest) -> Iterator[Models]:
    built = on_device.build(request.param)
    yield built
    del built
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def test_logprobs_of_chunks_are_within_the_rounding_of_their_logits(models: Models) -> None:
    """Logits of bfloat16 operands are rounded once, from a sum in float32; what follows is float32. A log-prob is one
    logit less a mean of others, so it is off by two roundings of the largest at most."""
    device, head = models.setting.device, models.rounded.get_output_embeddings().weight
    generator = torch.Generator(device).manual_seed(1)
    hidden = torch.randn(300, head.shape[1], device=device, generator=generator).bfloat16().requires_grad_()
    chosen = torch.randint(head.shape[0], (300,), device=device, generator=generator)
    found = chosen_logprobs(
        hidden, chosen, lambda h: h @ head.T, vocabulary=head.shape[0], limit=models.setting.logits_bytes, entropy=True
    )
    exact = hidden.detach().float().requires_grad_()
    logits = exact @ head.float().T
    expected = logits.log_softmax(-1)
    picked = expected.gather(-1, chosen[:, None])[:, 0]
    largest = float(logits.detach().abs().max())
    assert largest > 2
    assert float((found.logprobs - picked).detach().abs().max()) <= 2 * ULP * largest
    entropy = -(expected.exp() * expected).sum(-1)
    # Its derivative by a logit is its probability times a difference of log-probs, which add up to a few nats.
    assert float((found.entropy - entropy).detach().abs().max()) <= 4 * ULP * largest
    found.logprobs.sum().backward()
    picked.sum().backward()
    assert hidden.grad is not None
    assert exact.grad is not None
    # Probabilities follow logits, and are rounded once more, as the gradient is.
    assert apart([hidden.grad.float()], [exact.grad]) <= (3 + largest) * ULP


@pytest.mark.parametrize("rows", [0, 1], ids=["masked", "branched"])
def test_packed_rows_give_what_single_rows_give(models: Models, rows: int) -> None:
    with torch.no_grad():
        policy = policy_of(models, models.exact)
        plain = flat(plainly(models, models.exact))
        assert float((flat(singly(models, policy)) - plain).abs().max()) <= SUMS
        assert float((flat(packed(models, policy, models.setting.row_tokens[rows])) - plain).abs().max()) <= SUMS


def test_losses_and_gradients_in_bfloat16_are_as_near_float32_as_plain_transformers(models: Models) -> None:
    exact_logprobs = plainly(models, models.exact)
    exact_loss = objective(models, exact_logprobs)
    expected = on_device.gradients(models.exact, exact_loss)
    exact = flat(exact_logprobs)
    errors = {}
    rounded = policy_of(models, models.rounded)
    for name, model, logprobs in (
        ("plain", models.rounded, lambda: plainly(models, models.rounded)),
        ("ours", rounded, lambda: packed(models, rounded, models.setting.row_tokens[1])),
    ):
        found = logprobs()
        loss = objective(models, found)
        far = (flat(found) - exact).square().mean().sqrt().item(), apart(on_device.gradients(model, loss), expected)
        errors[name] = far
        # The loss is a mean of log-probs with weights: it is off by what they are, at most.
        weights = torch.cat([torch.from_numpy(s.reinforce[s.loss_mask]) for s in models.samples]).to(exact.device)
        bound = float(((flat(found) - exact).abs() * weights.abs()).mean()) + 1e-6
        assert abs(loss.item() - exact_loss.item()) <= bound
        print(f"\n{name}: log-probs off by {far[0]:.2e} (rms), gradients by {far[1]:.2e} of their length")
    for ours, plain in zip(errors["ours"], errors["plain"], strict=True):
        assert 0 < ours <= NO_WORSE * plain


def test_a_step_learns_and_its_speed_and_memory_are_told(models: Models) -> None:
    device = models.setting.device
    policy = policy_of(models, models.rounded)
    policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy.train()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = [parameter.detach().clone() for parameter in models.rounded.parameters()]
    losses: list[float] = []
    steps = on_device.training(models, policy, 4)
    losses.append(next(steps))  # what is compiled and allocated at first
    seconds = on_device.timed(device, lambda: losses.extend(steps)) / 3
    assert losses[-1] < losses[0]
    assert losses == sorted(losses, reverse=True)
    with torch.no_grad():
        for parameter, old in zip(models.rounded.parameters(), before, strict=True):
            parameter.copy_(old)
    tokens = sum(len(sample) for sample in models.samples)
    rate, peak = on_device.flops_of(models) / seconds, on_device.matmul_flops(device)
    print(f"\n{tokens / seconds:.0f} tokens/s, {rate / 1e12:.2f} TFLOP/s: MFU {rate / peak:.1%} of a large product's")
    if device.type == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")


@pytest.mark.parametrize("rank", [0, 8], ids=["weights", "adapters"])
def test_another_process_gets_the_weights_from_the_devices_memory(models: Models, rank: int, tmp_path: Path) -> None:
    """Adapters are merged twice, for the digests and in the thread that hands the weights over, and have to give the
    same bits."""
    pytest.importorskip("xxhash", reason="weights are known by their digests")
    from tests.support.offers import digests_of, parts_of, sender_of, store_in, take_elsewhere

    device, setting = models.setting.device, models.setting
    tensors = [(name, parameter.detach()) for name, parameter in models.rounded.named_parameters()]
    parts = parts_of(tensors, setting.bucket_bytes, rank)
    sender = sender_of(store_in(tmp_path))
    before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    published = sender.send(parts, 1, "1-0")
    assert published.transport == "ipc"
    assert published.manifest.layout.buckets > 4
    found = take_elsewhere(published, tmp_path)
    sender.withdraw()
    assert found["digests"] == digests_of(published)
    host = sender_of(store_in(tmp_path), "host").send(parts, 1, "2-0")
    assert published.manifest == host.manifest
    if device.type == "cuda":
        torch.cuda.ipc_collect()
        assert torch.cuda.memory_allocated() == before, "no bucket stays"
    print(f"\n{found['seconds'] / published.manifest.layout.nbytes * 1e9:.2f} s for each GB by handles")
