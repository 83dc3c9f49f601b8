"""A model endpoint that passes calls on and writes down what was said, so that other agent systems become teachers."""

from coa.recorder.server import Recorder, RecorderConfig, serving

__all__ = ["Recorder", "RecorderConfig", "serving"]
