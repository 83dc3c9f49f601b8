// A conversation with the agent over /v1/responses: each item of the output is a step, shown while it is streamed.
"use strict";
const $ = (id) => document.getElementById(id);
const COLORS = { think: "#6b7280", plan: "#2563c9", reflection: "#8a5cc2", suggested_answer: "#9a5b00", double_check: "#a63d75",
  tool: "#157a3d" };
const TOOLS = { web_search_call: "search", file_search_call: "look up", code_interpreter_call: "code", mcp_call: "tool" };
let previous = null, running = null;

const element = (tag, className, text) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};
const headers = () => {
  const key = $("key").value.trim();
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
};
const scroll = () => { const log = $("log"); log.scrollTop = log.scrollHeight; };

async function models() {
  const answer = await fetch("v1/models", { headers: headers() });
  if (answer.status === 401) { $("key-label").hidden = false; return; }
  const names = (await answer.json()).data.map((model) => model.id).filter((id) => !id.endsWith(":plain"));
  $("model").replaceChildren(...names.map((name) => new Option(name, name)));
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "))?.slice(6);
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

// What a step was asked, and what came back, in the fields of its item's own type.
const asked = (item) => item.action?.url ?? item.action?.query ?? item.queries?.join("\n") ?? item.code ?? item.arguments ?? item.input;
const came = (item) => item["coa:output"] ?? item.results?.map((found) => found.text).join("\n")
  ?? item.outputs?.map((one) => one.logs).join("\n") ?? item.output;
const roleOf = (item) => item.type === "reasoning" ? "think" : item.type.replace(/^coa:/, "");
const isTool = (item) => item.type in TOOLS || "input" in item;

class Turn {
  constructor(question) {
    this.question = question;
    this.box = element("section", "turn");
    this.box.append(element("div", "question", question));
    this.steps = new Map();
    this.began = performance.now();
    $("log").append(this.box);
  }
  add(item, index) {
    if (item.type === "message") {
      const answer = element("div", "answer");
      this.box.append(answer);
      return this.steps.set(index, { text: answer });
    }
    const role = roleOf(item), step = element("div", "step"), name = element("div", "name"), cost = element("span", "cost");
    step.style.setProperty("--role", COLORS[role] ?? COLORS.tool);
    step.dataset.role = role;
    name.append(element("span", "", item.name ?? TOOLS[item.type] ?? role.replaceAll("_", " ")), cost);
    const text = element("pre");
    step.append(name, text);
    this.box.append(step);
    this.steps.set(index, { step, text, cost, began: performance.now() });
  }
  finish(item, index) {
    const step = this.steps.get(index);
    if (item.type === "message") { step.text.textContent = item.content[0]?.text ?? ""; return; }
    if (item.action?.url) step.step.querySelector(".name span").textContent = "read page";
    step.text.textContent = isTool(item) ? asked(item) ?? "" : (item.summary ?? item.content)[0]?.text ?? "";
    const seconds = ((performance.now() - step.began) / 1000).toFixed(1);
    step.cost.textContent = `${item["coa:tokens"] ?? 0} tokens, ${seconds} s`;
    if (isTool(item) && came(item) != null) {
      const details = element("details"), found = came(item);
      details.append(element("summary", "", `observation, ${item["coa:observed_tokens"] ?? 0} tokens`), element("pre", "", found));
      step.step.append(details);
    }
  }
  take(event) {
    switch (event.type) {
      case "response.output_item.added": this.add(event.item, event.output_index); break;
      case "response.output_item.done": this.finish(event.item, event.output_index); break;
      case "response.completed": previous = event.response.id; this.end(event.response); break;
      case "response.incomplete": this.end(event.response, `no answer: ${event.response.incomplete_details.reason}`); break;
      case "response.failed": this.end(event.response, event.response.error.message); break;
      default:
        if (event.delta !== undefined) this.steps.get(event.output_index).text.append(event.delta);
    }
    scroll();
  }
  note(text) { this.box.append(element("div", "note", text)); }
  end(response, fault) {
    const foot = element("div", "foot"), again = element("button", "again", "Try again");
    again.type = "button";
    again.addEventListener("click", () => ask(this.question));
    const used = response?.usage, seconds = ((performance.now() - this.began) / 1000).toFixed(1);
    const weights = response?.["coa:versions"]?.length ? `, weights ${response["coa:versions"].join(" and ")}` : "";
    if (fault) foot.append(element("span", "fault", fault));
    foot.append(element("span", "used", used ? `${used.output_tokens} tokens sampled, ${used.input_tokens} read, ${seconds} s${weights}` : `${seconds} s`), again);
    this.box.append(foot);
    scroll();
  }
}

// A conversation goes on from its last response, which the server keeps for a while only.
const post = (question) => fetch("v1/responses", { method: "POST", headers: headers(), signal: running.signal,
  body: JSON.stringify({ model: $("model").value, input: question, stream: true, previous_response_id: previous,
    temperature: Number($("temperature").value), coa: { detail: "all" } }) });

async function ask(question) {
  if (running) return;
  const turn = new Turn(question);
  running = new AbortController();
  $("send").hidden = true; $("stop").hidden = false;
  try {
    let answer = await post(question), error = answer.ok ? null : (await answer.json()).error;
    if (error?.code === "response_not_found") {
      previous = null;
      turn.note("The server no longer has this conversation: a new one begins here.");
      answer = await post(question);
      error = answer.ok ? null : (await answer.json()).error;
    }
    if (error) {
      if (answer.status === 401) $("key-label").hidden = false;
      turn.end(null, error.message);
    } else for await (const event of events(answer)) turn.take(event);
  } catch (error) {
    turn.end(null, error.name === "AbortError" ? "stopped" : `the connection was lost (${error.message})`);
  } finally {
    running = null;
    $("send").hidden = false; $("stop").hidden = true;
    $("question").focus();
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = $("question").value.trim();
  if (!question || running) return;
  $("question").value = "";
  ask(question);
});
$("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); $("ask").requestSubmit(); }
});
$("stop").addEventListener("click", () => running?.abort());
addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
$("key").addEventListener("change", models);
$("settings").addEventListener("submit", (event) => event.preventDefault());
models().then(() => $("question").focus());
