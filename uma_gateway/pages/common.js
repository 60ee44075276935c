// Code that all pages share: the key, event streams, errors as text.
const KEY = "uma.key";

// Storage of this tab. A browser may forbid it or limit it to a few megabytes, so pages work without it.
export function stored(name) {
  try {
    return sessionStorage.getItem(name);
  } catch {
    return null;
  }
}

// False: the value could not be stored.
export function store(name, text) {
  try {
    sessionStorage.setItem(name, text);
    return true;
  } catch {
    return false;
  }
}

let key = stored(KEY);

export const element = (id) => document.getElementById(id);

function authorization() {
  return key ? { authorization: `Bearer ${key}` } : {};
}

// Ask for a key if the server requires one. True: a new one was given.
export function askForKey() {
  const given = window.prompt("This server needs a key:");
  if (!given) return false;
  key = given.replace(/[^\x20-\xff]/g, ""); // a header cannot hold others, and each further request would fail
  store(KEY, key);
  return true;
}

// Throw an error of the network in our words: the browsers' own ("Failed to fetch", "network error") do not say what
// failed.
function explain(error) {
  throw error instanceof TypeError ? new Error("the gateway does not answer") : error;
}

// Fetch with the key, and ask for one if it is missing. Throws an Error with the server's message and HTTP status;
// `lacksKey` is set if no key was given. A caller with a timer must then stop, or a closed dialog would come back for
// ever.
export async function ask(path, options = {}) {
  for (;;) {
    const headers = { ...options.headers, ...authorization() };
    const answer = await fetch(path, { ...options, headers }).catch(explain);
    if (answer.ok) return answer;
    if (answer.status === 401 && askForKey()) continue;
    let words = `HTTP ${answer.status}`;
    try {
      const body = await answer.json();
      words = body.error?.message ?? body.error ?? words;
    } catch {
      /* not JSON: the status is all there is */
    }
    throw Object.assign(new Error(words), { status: answer.status, lacksKey: answer.status === 401 });
  }
}

// The lines of an event stream: yields {data} for events and {comment} for comments.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read().catch(explain);
    if (done) return;
    const lines = (held + value).split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ")) yield { data: line.slice(6) };
      else if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
    }
  }
}

// The values of a stream that goes on for ever. One that ends is asked for again, because a cluster's gateway ends each
// after a while; if nothing came, the gateway is stopping.
export async function* watch(path) {
  for (let isGoingOn = true; isGoingOn; ) {
    isGoingOn = false;
    for await (const { data } of events(await ask(path))) {
      if (!data) continue;
      isGoingOn = true;
      yield JSON.parse(data);
    }
  }
}
