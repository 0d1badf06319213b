// A failed request of htmx keeps what the page shows, and says why it failed.

const STATUS = "#notice";

document.addEventListener("htmx:before:swap", (event) => {
  const response = event.detail?.ctx?.response;
  if (!response || response.status < 400) return;
  event.preventDefault();
  const page = new DOMParser().parseFromString(event.detail.ctx.text ?? "", "text/html");
  say(page.querySelector(".failed p")?.textContent ?? `The service answered ${response.status}.`);
});
document.addEventListener("htmx:error", () => say("The service does not answer. What you see may be old."));
document.addEventListener("htmx:after:swap", () => say(""));

/** @param {string} text */
function say(text) {
  const notice = document.querySelector(STATUS);
  if (!notice) return;
  notice.textContent = text;
  notice.hidden = !text;
}
