// Live updates of this tab, as events of the document: ts:live with {kind, ...}.

const light = document.querySelector("#live");
const WORDS = { on: "Live", lost: "Reconnecting" };

function topics() {
  const named = [...document.querySelectorAll("[data-watch]")].map((item) => item.dataset.watch);
  return named.filter(Boolean).map((text) => {
    const [topic, seq] = text.split(":");
    return [topic, Number(seq ?? 0)];
  });
}

function receive(message) {
  if (message.kind === "state" && light) {
    light.dataset.state = message.state;
    light.querySelector("span").textContent = WORDS[message.state];
  }
  if (message.kind === "row") row(message.data);
  document.dispatchEvent(new CustomEvent("ts:live", { detail: message }));
}

const waiting = [];
setInterval(() => document.querySelector("#rows:is(:hover, :focus-within)") || waiting.splice(0).forEach(row), 500);

/** Replace a row of the list, or add it on top of an unfiltered first page. */
function row({ id, html }) {
  const list = document.querySelector("#rows");
  if (!list) return;
  const fresh = new DOMParser().parseFromString(`<table>${html}</table>`, "text/html").querySelector("tr"); // rendered and escaped by the server
  const old = document.getElementById(`row-${id}`);
  if (!old) {
    if (new URLSearchParams(location.search).size > location.search.includes("pick=")) return;
    if (list.matches(":hover, :focus-within")) waiting.push({ id, html }); // no row moves under the pointer
    else list.prepend(fresh);
    return;
  }
  const box = fresh.querySelector("input");
  if (box) box.checked = old.querySelector("input")?.checked ?? false;
  const focused = old.contains(document.activeElement) && document.activeElement.tagName.toLowerCase();
  old.replaceWith(fresh);
  if (focused) fresh.querySelector(focused)?.focus();
}

async function start() {
  const wanted = topics();
  if (!wanted.length) return;
  try {
    const worker = new SharedWorker(new URL("live.worker.js", import.meta.url), { type: "module", name: "tunesmith" });
    worker.onerror = () => alone(wanted);
    worker.port.onmessage = ({ data }) => receive(data);
    worker.port.postMessage({ topics: wanted });
    addEventListener("pagehide", () => worker.port.postMessage({ leave: true }));
    addEventListener("pageshow", (event) => event.persisted && location.reload());
  } catch {
    alone(wanted); // no SharedWorker here
  }
}

/** A stream of this tab's own, closed while the tab is hidden. */
async function alone(wanted) {
  const { Stream } = await import("./stream.js");
  const stream = new Stream("/portal/live");
  let at = wanted;
  const follow = () => {
    if (!document.hidden) return stream.watch(receive, at);
    at = [...(stream.listeners.get(receive) ?? at)];
    stream.leave(receive);
  };
  document.addEventListener("visibilitychange", follow);
  follow();
}

start();
