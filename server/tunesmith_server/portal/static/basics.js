// What every page needs: current times, the first focus, buttons that copy, and failed requests.

// Keeps relative times current.

/** @param {number} moment Unix seconds */
function ago(moment) {
  const seconds = Date.now() / 1000 - moment;
  if (seconds < 10) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

setInterval(() => {
  for (const time of document.querySelectorAll("time[datetime]:not([data-future])")) {
    const shown = ago(Number(time.getAttribute("datetime")));
    if (time.textContent !== shown) time.textContent = shown;
  }
}, 20000);

// The element that takes the focus, unless somebody types already; `autofocus` would complain then.

if (document.activeElement === document.body) document.querySelector("[data-focus]")?.focus();

// Copies the text of `data-copy`, and says so.

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.dataset.done = "true";
    setTimeout(() => delete button.dataset.done, 1500);
  } catch {
    button.dataset.failed = "true"; // no right to the clipboard: the text can be selected
  }
});

// A hidden page does not refresh itself. On the home page, its time counts as absence.

document.addEventListener("htmx:config:request", (event) => {
  const cause = event.detail?.ctx?.sourceEvent?.type;
  if (document.hidden && ["every", "visibilitychange"].includes(cause)) event.preventDefault();
});

// A failed request keeps what the page shows and what was typed, and says why it failed. A part that
// is loaded after the page is requested again until the service answers.

export const STATUS = "#notice";
const AGAIN_MS = 5000;
const AWAY = "The service does not answer. What you see may be old.";

export const parse = (text) => new DOMParser().parseFromString(text, "text/html");

/** Return the reason of a failed request: the error of the server's answer, or a text. */
export function reason(status, page, away) {
  if (status === 502 || status === 504) return [away]; // the answer of a proxy
  const error = page.querySelector(".failed");
  return error ? [...error.children] : [`The service answered ${status}.`];
}

document.addEventListener("htmx:before:swap", (event) => {
  const response = event.detail?.ctx?.response;
  if (!response || response.status < 400) return;
  event.preventDefault();
  say(reason(response.status, parse(event.detail.ctx.text ?? ""), AWAY));
  if (response.status >= 500) again(event);
});
document.addEventListener("htmx:error", (event) => {
  say([AWAY]);
  again(event);
});

/** @param {CustomEvent} event event of a failed request */
function again(event) {
  const part = event.detail?.ctx?.sourceElement;
  if (!part?.getAttribute("hx-trigger")?.includes("ts:again")) return;
  setTimeout(() => part.isConnected && part.dispatchEvent(new Event("ts:again")), AGAIN_MS);
}

document.addEventListener("htmx:after:swap", () => {
  const notice = document.querySelector(STATUS);
  if (notice && !("kept" in notice.dataset)) say([]);
});

document.addEventListener("ts:say", (event) => say([event.detail]));

/** @param {(string | Node)[]} content @param {Element | null} [notice] */
export function say(content, notice = document.querySelector(STATUS)) {
  if (!notice) return;
  notice.replaceChildren(...content);
  notice.hidden = !content.length;
}

// Forms are sent by forms.js, which is loaded at the first key or click.

let forms = null;
const load = () => (forms ??= import("./forms.js").catch(() => { forms = null; }));
for (const kind of ["pointerdown", "keydown"]) addEventListener(kind, load, { once: true });

document.addEventListener("submit", async (event) => {
  const { target, submitter } = event;
  if (event.defaultPrevented || target.getAttribute("method") !== "post") return;
  event.preventDefault();
  const loaded = await load();
  if (loaded) loaded.send(target, submitter);
  else say([AWAY]);
});
