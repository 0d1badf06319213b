// The page of a job: parts that the server computes again, title and icon, dialogs, folded cards.
// Curves are in a module of their own, so this one runs even if it fails.

const page = document.querySelector("#job");
const title = document.title;
const SLOW_MS = 5000;

import("./chart.js").catch(() => {
  for (const box of document.querySelectorAll("ts-chart .none")) box.textContent = "This browser cannot draw the curve; the table has its values.";
});

let due = 0;
/** Ask for the computed parts, unless a dialog or a field is in use. */
function refresh(delay) {
  due ||= setTimeout(() => {
    due = 0;
    const busy = document.querySelector("dialog[open]") || document.activeElement?.closest("#events form");
    if (document.hidden || busy) return refresh(SLOW_MS);
    window.htmx?.trigger(page, "ts:refresh");
  }, delay);
}

/** @param {number} value */
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "-∞";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return value !== 0 && size < 1e-3 ? value.toExponential(1).replace(/e([+-])(\d)$/, "e$10$2") : String(Number(value.toPrecision(4)));
}

function progress() {
  const bar = document.querySelector("#progress");
  const head = document.querySelector("#head");
  if (!head) return;
  const share = bar ? Math.floor(bar.value * 100) : 0;
  const going = ["running", "pausing"].includes(head.dataset.state);
  document.title = going && bar ? `${share} % ${title}` : title;
  icon(going ? share / 100 : 1, head.dataset.state);
}

/** Draw the tab's icon: a ring that fills, in the colour of the state. */
function icon(share, state) {
  const link = document.querySelector("link[rel=icon]");
  const colour = { succeeded: "#137445", failed: "#b8262b", cancelled: "#5d616d", paused: "#7d3fae" }[state] ?? "#2058d6";
  const round = 2 * Math.PI * 12;
  const ring = (stroke, dash) => `<circle cx="16" cy="16" r="12" fill="none" stroke="${stroke}" stroke-width="7"${dash} transform="rotate(-90 16 16)"/>`;
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">${ring("#8b8d98", "")}${ring(colour, ` stroke-dasharray="${share * round} ${round}"`)}</svg>`;
  const address = `data:image/svg+xml,${encodeURIComponent(svg)}`;
  if (link && link.href !== address) link.href = address;
}

document.addEventListener("ts:live", ({ detail }) => {
  if (detail.kind === "done") return refresh(200);
  if (detail.kind === "state") return detail.state === "on" ? refresh(SLOW_MS) : undefined;
  if (detail.kind !== "event") return;
  const { kind, data } = detail.data;
  if (kind === "state") tell(data.state);
  if (kind === "samples") return window.htmx?.trigger(document.querySelector("#completions") ?? page, "ts:samples");
  if (kind !== "metrics") return refresh(kind === "state" || kind === "checkpoint" ? 200 : 1500);
  for (const [name, value] of Object.entries(data)) {
    const figure = document.querySelector(`[data-figure="${CSS.escape(name)}"]`);
    if (figure && typeof value === "number") figure.textContent = number(value);
  }
  const bar = document.querySelector("#progress");
  if (bar && data.total_steps) {
    bar.value = data.step / data.total_steps;
    document.querySelector("#steps").textContent = `${data.step.toLocaleString("en")} of ${data.total_steps.toLocaleString("en")} steps`;
  }
  progress();
  refresh(SLOW_MS);
});

// A notification of the browser when the job ends, if the visitor asks for one in this tab.

const notice = `notify ${page.dataset.job}`;
const ENDS = ["succeeded", "failed", "cancelled"];

const refusal = () => !window.Notification || !isSecureContext
  ? "This browser shows notifications only on pages with https."
  : Notification.permission === "denied" ? "The browser blocks notifications of this page." : "";

function offer() {
  const button = document.querySelector("[data-notify]");
  if (!button) return;
  button.setAttribute("aria-disabled", String(Boolean(refusal())));
  button.title = refusal();
  button.setAttribute("aria-pressed", String(Boolean(sessionStorage.getItem(notice))));
}

document.addEventListener("click", async (event) => {
  if (!event.target.closest("[data-notify]")) return;
  if (sessionStorage.getItem(notice)) sessionStorage.removeItem(notice);
  else if (!refusal() && await Notification.requestPermission() === "granted") sessionStorage.setItem(notice, "ends");
  if (refusal()) document.dispatchEvent(new CustomEvent("ts:say", { detail: refusal() }));
  offer();
});

/** @param {string} end */
function tell(end) {
  if (!ENDS.includes(end) || !sessionStorage.getItem(notice)) return;
  sessionStorage.removeItem(notice);
  try {
    const shown = new Notification(`${page.dataset.name} ${end}`, { body: document.querySelector("#steps")?.textContent ?? "", tag: page.dataset.job });
    shown.onclick = () => window.focus();
  } catch { /* this browser only lets a service worker notify */ }
}

let state = document.querySelector("#head")?.dataset.state;
document.addEventListener("htmx:after:swap", () => {
  const head = document.querySelector("#head");
  if (head && head.dataset.state !== state) {
    state = head.dataset.state;
    document.querySelector("#said").textContent = head.querySelector(".badge")?.textContent ?? "";
  }
  raise();
  offer();
  progress();
});
document.addEventListener("visibilitychange", () => !document.hidden && document.querySelector("[data-watch^=ftjob]") && refresh(0));

document.addEventListener("click", (event) => {
  const open = event.target.closest("[data-dialog]");
  const close = event.target.closest("[data-close]");
  if (!open && !close) return;
  event.preventDefault();
  if (open) document.getElementById(open.dataset.dialog)?.showModal();
  else close.closest("dialog").close();
});

/** Show a dialog that the server sent open. */
function raise() {
  const asked = document.querySelector("dialog[open]:not(:modal)");
  asked?.close();
  asked?.showModal();
}

if (matchMedia("(max-width: 760px)").matches) for (const fold of document.querySelectorAll("[data-fold]")) fold.open = false;
raise();
offer();
progress();
