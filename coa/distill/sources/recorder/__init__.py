"""The recorder: a model endpoint that forwards calls and records them, so that other agent systems can be teachers."""

from coa.distill.sources.recorder.server import Recorder, RecorderConfig, serving

__all__ = ["Recorder", "RecorderConfig", "serving"]
