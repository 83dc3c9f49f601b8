"""A tag for a tool of an MCP server, and a profile that uses it; the server is the recipe's to name.

COA_EXTENSIONS=docs.examples.forecast coa evaluate --model runs/demo/model --tasks trips.jsonl \
    tools.mcp.weather.url=http://127.0.0.1:9000/mcp tools.mcp.weather.tags.forecast.tool=get_forecast
"""

from coa.agent.grammar import Form, Kind, Tag
from coa.agent.profiles import register, with_tools
from coa.agent.profiles.mhqa import MHQA

FORECAST = Tag("forecast", Kind.TOOL, "ask for the weather of the next days in one town", Form.LINE, max_tokens=64)

register(with_tools(MHQA, "traveller", FORECAST))
