"""An extension: in the benchmarks' processes `benchmarks.speed.tools` answers `wiki_search`."""

from benchmarks.speed.tools import SlowLookup
from coa.grading import toolset

# `toolset.register` refuses the name of a standard tool, whose place this one takes.
toolset.REGISTERED.register("wiki_search", SlowLookup)
