"use strict";
// A chat over this server's own /v1/chat/completions.  The conversation is in this page's memory alone.

const element = (id) => document.getElementById(id);
let messages = [];
let running = null; // what ends the answer that comes now

function headers() {
  const key = element("key").value.trim();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

function show(kind, text) {
  element("hint")?.remove();
  const box = document.createElement("div");
  box.className = kind;
  box.textContent = text;
  element("log").append(box);
  box.scrollIntoView({ block: "end" });
  return box;
}

// fetch, and a stream that breaks off, fail with a TypeError whose text differs from browser to browser.
function explained(error) {
  return error instanceof TypeError ? "the server does not answer. Is mesh-coord serve-model running?" : error.message;
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

async function models() {
  const response = await fetch("/v1/models", { headers: headers() }).catch(() => null);
  if (!response) return; // the next message says so
  element("keyfield").hidden = response.status !== 401 && !element("key").value;
  if (!response.ok) return;
  const chosen = element("model").value;
  const names = (await response.json()).data.map((each) => each.id);
  element("model").replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
}

// What each event of a stream carries.  Lines that are no data are comments, which a server sends while it loads a model.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      if (!frame.startsWith("data:")) continue;
      const data = frame.slice("data:".length).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function answer() {
  const own = messages; // "New chat" begins another
  const box = show("message assistant", "…");
  const began = performance.now();
  let text = "";
  let usage = null;
  running = new AbortController();
  element("send").textContent = "Stop";
  try {
    const body = {
      model: element("model").value,
      messages: own,
      stream: true,
      stream_options: { include_usage: true },
      temperature: Number(element("temperature").value),
      max_completion_tokens: Number(element("limit").value),
    };
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal,
    });
    if (!response.ok) throw new Error(await reason(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      text += event.choices[0]?.delta.content ?? "";
      box.textContent = text || "…";
      box.scrollIntoView({ block: "end" });
    }
  } catch (error) {
    if (error.name === "AbortError") {
      box.textContent = text || "(stopped)";
    } else {
      box.classList.add("wrong");
      box.textContent = text ? `${text}\n\n${explained(error)}` : explained(error);
      if (/API key/.test(error.message)) element("keyfield").hidden = false;
    }
  }
  running = null;
  element("send").textContent = "Send";
  if (text) own.push({ role: "assistant", content: text });
  else own.pop();
  if (own !== messages) return;
  if (usage) {
    const took = (performance.now() - began) / 1000;
    show("figures", `${usage.completion_tokens} tokens, ${(usage.completion_tokens / took).toFixed(1)} per second`);
  }
}

element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) return running.abort();
  const text = element("text").value.trim();
  if (!text) return;
  element("text").value = "";
  messages.push({ role: "user", content: text });
  show("message user", text);
  answer();
});
element("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) element("form").requestSubmit();
});
element("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  element("log").replaceChildren();
  element("text").focus();
});
element("key").addEventListener("change", models);
models();
