// A chat with the served model. The conversation is stored for this tab: a reload in mid-answer keeps the text so far.
import { ask, element, events, store, stored } from "./common.js";

const CHAT = "uma.chat";
const SETTINGS = "uma.settings";
let messages = JSON.parse(stored(CHAT) ?? "[]");
let running = null; // AbortController of the answer in progress

const KEEP_MS = 300;
const RETRY_MS = 2000;
const COPIED_MS = 2000; // how long a button says that it has copied
let isKept = true;
const keep = () => {
  isKept = store(CHAT, JSON.stringify(messages));
};
const log = element("log");
let keeping = 0; // timer
let isLeaving = false;
const keepSoon = () => {
  keeping ||= setTimeout(() => {
    keeping = 0;
    keep();
  }, KEEP_MS);
};

// Show text, with fenced code in boxes. Nothing that a model writes becomes markup.
function fill(node, text) {
  node.replaceChildren();
  text.split(/\n*```[^\n]*\n?/).forEach((part, i) => {
    if (!part) return;
    if (i % 2 === 0) return node.append(i ? part.replace(/^\n+/, "") : part);
    const box = document.createElement("pre");
    box.textContent = part;
    node.append(box);
  });
}

function show(message) {
  const node = document.createElement("article");
  node.className = `message ${message.role}`;
  const who = document.createElement("span");
  who.className = "who";
  who.textContent = message.role === "user" ? "You" : "Model";
  const thought = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = "Thoughts";
  const inner = document.createElement("div");
  thought.append(summary, inner);
  const text = document.createElement("span");
  text.className = "text";
  const end = document.createElement("small");
  end.className = "end";
  const copy = copyButton(message);
  node.append(who, thought, text, end, copy);
  log.append(node);
  let isDue = false; // draw at most once per frame, however many tokens arrive
  const draw = () => {
    isDue = false;
    const isLow = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    thought.hidden = !message.reasoning;
    inner.textContent = message.reasoning ?? "";
    fill(text, message.content);
    end.textContent = message.end ?? "";
    copy.hidden = message.isOpen || !message.content || !navigator.clipboard; // absent over HTTP from another machine
    if (isLow) log.scrollTop = log.scrollHeight;
  };
  draw();
  const drawSoon = () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(draw);
  };
  return { draw, drawSoon };
}

function copyButton(message) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "small", textContent: "Copy" });
  button.setAttribute("aria-label", message.role === "user" ? "Copy your message" : "Copy the answer");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(message.content);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), COPIED_MS);
    } catch (error) {
      tell(`The browser does not allow it: ${error.message}`, true);
    }
  });
  return button;
}

function tell(words, isBad = false) {
  const state = element("state");
  state.textContent = isKept ? words : `${words} (The browser's storage is full: a reload loses this chat.)`.trim();
  state.classList.toggle("bad", isBad);
}

function setRunning(controller) {
  running = controller;
  element("send").hidden = controller !== null;
  element("stop").hidden = controller === null;
  element("again").hidden = controller !== null || messages.length === 0;
  log.setAttribute("aria-busy", String(controller !== null)); // a screen reader reads an answer once it is complete
}

function waiting(comment) {
  const found = /queue_position=(\d+) wait_ms=(\d+)/.exec(comment);
  if (found) tell(`Waiting: place ${Number(found[1]) + 1} in the queue, about ${Math.ceil(found[2] / 1000)} s`);
}

// Move the last message back to the box. If a message that is refused for what it says stayed in the chat, each further
// one would be refused with it.
function takeBack() {
  const box = element("text");
  box.value = [messages.pop().content, box.value].filter(Boolean).join("\n");
  log.lastChild.remove();
  box.dispatchEvent(new Event("input")); // it grows with its text
}

async function answer() {
  const controller = new AbortController();
  setRunning(controller);
  const reply = { role: "assistant", content: "", reasoning: "", isOpen: true };
  const system = element("system").value.trim();
  const body = {
    messages: [
      ...(system ? [{ role: "system", content: system }] : []),
      ...messages.map(({ role, content }) => ({ role, content })),
    ],
    temperature: Number(element("temperature").value),
    max_tokens: Number(element("most").value) || undefined,
    chat_template_kwargs: { enable_thinking: element("thinking").checked },
    stream: true,
    stream_options: { include_usage: true },
  };
  let shown = null;
  let outcome = ["", false]; // shown once the answer has ended and is fully drawn
  try {
    const answer = await ask("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", "x-priority": "interactive" },
      body: JSON.stringify(body),
      signal: controller.signal,
    });
    messages.push(reply);
    shown = show(reply);
    for await (const { data, comment } of events(answer)) {
      if (comment !== undefined) waiting(comment);
      if (!data || data === "[DONE]") continue;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      const delta = event.choices?.[0]?.delta;
      if (delta?.content) reply.content += delta.content;
      if (delta?.reasoning_content) reply.reasoning += delta.reasoning_content;
      if (delta?.content || delta?.reasoning_content) {
        if (element("state").textContent) tell("");
        shown.drawSoon();
        keepSoon();
      }
      if (event.choices?.[0]?.finish_reason === "length") reply.end = "The answer reached its token limit.";
      if (event.timings) {
        const n = event.usage?.completion_tokens ?? event.timings.predicted_n;
        outcome = [
          `${n} token${n === 1 ? "" : "s"}, ${Math.round(event.timings.predicted_per_second)} a second`,
          false,
        ];
      }
    }
  } catch (error) {
    if (isLeaving) return; // leaving the page aborts the request: the next page says that the answer was cut off
    if (error.name === "AbortError") {
      reply.end = "Stopped.";
      outcome = ["Stopped.", false];
    } else {
      reply.end = "Broken off.";
      outcome = [error.message, true];
      if (running === controller && (error.status === 400 || error.status === 413)) takeBack();
    }
  } finally {
    if (isLeaving) return;
    reply.isOpen = false;
    shown?.draw(); // at once: a background tab gets no frames, and the outcome must not appear before the text
    keep();
    if (running === controller) {
      setRunning(null);
      tell(...outcome);
    }
    element("text").focus();
  }
}

// Show the model's name. While the daemon is absent or loads, say so, and try again.
async function nameModel() {
  let complaint = "";
  const isComplaining = () => element("state").textContent === complaint && !running;
  for (;;) {
    try {
      const { data } = await (await ask("/v1/models")).json();
      element("model").textContent = `${data[0].id}, ${data[0].context_length.toLocaleString()} tokens of context`;
      if (complaint && isComplaining()) tell("");
      return;
    } catch (error) {
      if (isComplaining()) {
        tell(error.message, true);
        complaint = element("state").textContent;
      }
      if (error.status < 500) return; // such as no key
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

// The settings are stored like the conversation: after a reload it goes on under the same system message.
function keepSettings() {
  const inputs = [...document.querySelectorAll("details.settings input")];
  const property = (input) => (input.type === "checkbox" ? "checked" : "value");
  const kept = JSON.parse(stored(SETTINGS) ?? "{}");
  for (const input of inputs) {
    if (input.id in kept) input[property(input)] = kept[input.id];
    input.addEventListener("input", () =>
      store(SETTINGS, JSON.stringify(Object.fromEntries(inputs.map((each) => [each.id, each[property(each)]])))),
    );
  }
}

element("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const box = element("text");
  const content = box.value.trim();
  if (!content || running) return;
  const message = { role: "user", content };
  messages.push(message);
  show(message);
  keep();
  box.value = "";
  box.style.height = "";
  log.scrollTop = log.scrollHeight;
  answer();
});
element("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  element("ask").requestSubmit();
});
element("text").addEventListener("input", ({ target }) => {
  target.style.height = "";
  target.style.height = `${target.scrollHeight + 2}px`;
});
element("stop").addEventListener("click", () => running?.abort());
element("again").addEventListener("click", () => {
  if (messages.at(-1)?.role === "assistant") {
    messages.pop();
    log.lastChild.remove();
  }
  if (messages.length) answer();
});
element("fresh").addEventListener("click", () => {
  running?.abort();
  messages = [];
  keep();
  log.replaceChildren();
  tell("");
  setRunning(null);
  element("text").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
addEventListener("pagehide", () => {
  isLeaving = true;
  keep();
});
addEventListener("pageshow", () => {
  isLeaving = false; // the page was restored from the browser's cache
});

keepSettings();
for (const message of messages) {
  if (message.isOpen) Object.assign(message, { isOpen: false, end: "Cut off: you left the page before the end." });
  show(message);
}
setRunning(null);
log.scrollTop = log.scrollHeight;
nameModel();
