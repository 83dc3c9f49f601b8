"""Decoding of attempts: settings of the command or recipe take precedence over the benchmark's protocol, which takes
precedence over the defaults here."""

from coa.tasks.published.benchmark import Benchmark, Decoding

GREEDY = Decoding(samples=1, temperature=0.0)
OTHERWISE = Decoding(samples=4, temperature=1.0)
"""The protocol of tasks that belong to no benchmark."""


def decoding_of(
    benchmark: Benchmark | None, *, samples: int | None, temperature: float | None, top_p: float | None
) -> Decoding:
    """The protocol with these settings; None takes the benchmark's setting. Greedy decoding has one sample."""
    base = OTHERWISE if benchmark is None else benchmark.decoding
    temperature = base.temperature if temperature is None else temperature
    return Decoding(
        samples=1 if temperature == 0 else base.samples if samples is None else samples,
        temperature=temperature,
        top_p=base.top_p if top_p is None else top_p,
    )
