"""The domain of Chain-of-Agents: types, grammar, episodes, distillation, rewards, credit, losses.

Imports neither Ray nor vLLM nor DeepSpeed.
"""

__version__ = "0.1.0"
