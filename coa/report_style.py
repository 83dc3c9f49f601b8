"""The style sheet of a run's page: dark text on white, one column, numbers aligned."""

SFT, RL = "#8794a8", "#2463c9"
"""The colours of the two models, the same in every plot and table."""

ROLE_COLOURS = {
    "think": "#667085",
    "plan": "#1d5fc4",
    "wiki_search": "#7a3fc0",
    "web_search": "#7a3fc0",
    "crawl_page": "#9a3fa8",
    "code": "#7a3fc0",
    "observation": "#4a5a4c",
    "reflection": "#b2570a",
    "suggested_answer": "#0f766e",
    "double_check": "#a03a4a",
    "answer": "#157a3d",
}

STYLE = """
:root { --ink: #1b2430; --soft: #5d6878; --line: #e3e7ed; --wash: #f6f8fa; --up: #157a3d; --down: #b3362b; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 28px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 19px; margin: 44px 0 12px; padding-bottom: 6px; border-bottom: 1px solid var(--line); }
h3 { font-size: 14px; margin: 0 0 6px; }
p { margin: 0 0 10px; }
.sub, .note, .none { color: var(--soft); }
.note { font-size: 13px; margin-top: 8px; }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: 14px; margin: 26px 0 22px; }
.tile { border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px; }
.tile .label { color: var(--soft); font-size: 13px; }
.tile .big { font-size: 30px; font-weight: 650; line-height: 1.25; letter-spacing: -.02em; white-space: nowrap; }
.tile .detail { font-size: 13px; color: var(--soft); }
.grid2 { display: grid; grid-template-columns: 1fr 1fr; gap: 26px 32px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font: 13px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
svg text.tick { fill: var(--soft); font-size: 11.5px; }
svg text.value { font-weight: 600; }
svg line.grid { stroke: var(--line); stroke-width: 1; }
.legend { font-size: 12.5px; color: var(--soft); padding-left: 56px; }
.legend span { margin-right: 16px; white-space: nowrap; }
.legend i { display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 6px;
  vertical-align: middle; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th { font-weight: 600; font-size: 12.5px; color: var(--soft); text-align: right; padding: 6px 10px;
  vertical-align: bottom; border-bottom: 1px solid #cbd2db; }
td { text-align: right; padding: 6px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; }
td:last-child, th:last-child { padding-right: 0; }
.up { color: var(--up); } .down { color: var(--down); }
details { border: 1px solid var(--line); border-radius: 8px; margin: 10px 0; }
summary { cursor: pointer; padding: 10px 14px; }
summary .mark { float: right; font-weight: 600; }
.chain { padding: 2px 14px 12px; border-top: 1px solid var(--line); }
.span { border-left: 3px solid var(--role); padding: 1px 0 1px 12px; margin: 8px 0; }
.span b { display: block; color: var(--role); font-size: 12.5px; font-weight: 600; }
.span pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere;
  font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.span.observation pre { background: var(--wash); padding: 4px 8px; border-radius: 4px; }
@media (max-width: 760px) { .tiles { grid-template-columns: 1fr 1fr; } .grid2 { grid-template-columns: 1fr; } }
@media print { details { break-inside: avoid; } }
"""
