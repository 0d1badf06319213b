// Forms that are sent in the background, so that a failure loses nothing.
import { STATUS, parse, reason, say } from "./basics.js";

const NOT_SENT = "The service does not answer. Nothing was sent. What you typed is still here.";
const sending = new Set();

/** @param {HTMLFormElement} form @param {HTMLElement | null} submitter */
export async function send(form, submitter) {
  if (sending.has(form)) return;
  sending.add(form);
  fail(form, []);
  const data = new FormData(form, submitter);
  const body = form.enctype === "multipart/form-data" ? data : new URLSearchParams(data);
  try {
    const answer = await fetch(form.getAttribute("action"), { method: "POST", body, headers: { "hx-request": "form" } });
    const path = answer.headers.get("hx-redirect");
    if (path) return go(path);
    const page = parse(await answer.text());
    if (page.querySelector("#main")) show(page);
    else fail(form, reason(answer.status, page, NOT_SENT));
  } catch {
    fail(form, [NOT_SENT]);
  }
  sending.delete(form);
}
addEventListener("pageshow", () => sending.clear());

// Shows why a form was not sent: above the page, or in the form if that place is covered or missing.
function fail(form, content) {
  let notice = form.closest("dialog") ? null : document.querySelector(STATUS);
  notice ??= form.querySelector(".notice");
  if (!notice) {
    if (!content.length) return;
    form.insertAdjacentHTML("beforeend", '<div class="notice is-bad" role="alert"></div>');
    notice = form.lastElementChild;
  }
  notice.toggleAttribute("data-kept", content.length > 0);
  say(content, notice);
}

function go(path) {
  const to = new URL(path, location);
  if (to.pathname + to.search !== location.pathname + location.search) return location.assign(to);
  history.replaceState(null, "", to);
  location.reload();
}

// Shows a page that answers a form, such as the form with its problems.
function show(page) {
  const main = page.querySelector("#main");
  document.title = page.title;
  document.querySelector("#main").replaceWith(main);
  window.htmx?.process(main);
  document.dispatchEvent(new Event("ts:page"));
  main.querySelector("[data-focus]")?.focus();
}
