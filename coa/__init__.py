"""The domain of Chain-of-Agents: types, grammar, episodes, distillation, rewards, advantages, losses.

Imports neither Ray nor vLLM nor DeepSpeed.
"""

from coa.moved import install

__version__ = "0.1.0"

install()
