// Keys: `g` and a letter goes to a page, `j` and `k` move in the rows below `data-rows`.
// A page adds a key with `data-key="f"` on the element that it clicks or focuses.

const ROW = "[data-rows] :is(tr, li):has(a)";
const all = (selector) => [...document.querySelectorAll(selector)];
let waitsForPage = 0;

/** @param {KeyboardEvent} event */
function isTyping(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  return target.isContentEditable || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName) && target.type !== "checkbox";
}

function move(by) {
  const rows = all(ROW);
  const at = rows.indexOf(document.activeElement?.closest(ROW));
  rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + by))]?.querySelector("a").focus();
}

function pick() {
  document.activeElement?.closest(ROW)?.querySelector("input[type=checkbox]")?.click();
}

function press(key) {
  const element = all("[data-key]").find((item) => item.dataset.key === key);
  if (!element || element.disabled) return false;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(element.tagName) && element.type !== "file") {
    element.focus();
    element.select?.();
  } else element.click();
  return true;
}

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (isTyping(event)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (document.querySelector("dialog[open], dialog:popover-open")) return;
  let done = true;
  if (Date.now() - waitsForPage < 1500) {
    waitsForPage = 0;
    const link = all("[data-go]").find((item) => item.dataset.go === event.key);
    if (link) link.click();
    done = Boolean(link);
  } else if (event.key === "g") waitsForPage = Date.now();
  else if (event.key === "?") document.querySelector("#page-keys")?.showPopover();
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "x") pick();
  else if (event.key === "o") document.activeElement?.closest(ROW)?.querySelector("a")?.click();
  else done = press(event.key);
  if (done) event.preventDefault();
});
