// Keys: `?` shows them, `g` and a letter goes to a page, `/` searches, `j` and `k` move in a list.
// A page adds a key with `data-key="f"` on the element that it clicks or focuses.

const all = (selector) => [...document.querySelectorAll(selector)];
let waitsForPage = 0;

/** @param {KeyboardEvent} event */
function isTyping(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  return target.isContentEditable || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName) && target.type !== "checkbox";
}

function move(by) {
  const links = all("#rows th a");
  if (!links.length) return;
  const at = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
  links[Math.max(0, Math.min(links.length - 1, at < 0 ? 0 : at + by))].focus();
}

function pick() {
  const box = document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]");
  box?.click();
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
  else if (event.key === "o") document.activeElement?.closest("tr")?.querySelector("th a")?.click();
  else done = press(event.key);
  if (done) event.preventDefault();
});
