// Forms that keep what was typed in this browser, and send on Ctrl Enter.

const SENT = "draft-sent";

/** @param {HTMLFormElement} form */
export function save(form, key) {
  try {
    localStorage.setItem(key, JSON.stringify(Object.fromEntries(new FormData(form))));
  } catch { /* no storage: the form works without a draft */ }
}

/** Return the draft, or null. */
export function load(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch { /* a damaged draft counts as none */ }
  return null;
}

/** @param {Record<string, string>} draft */
export function restore(form, draft) {
  for (const item of form.elements) {
    if (!item.name) continue;
    const text = draft[item.name];
    if (item.type === "radio" || item.type === "checkbox") item.checked = text === item.value;
    else if (text !== undefined) {
      if (item.options && ![...item.options].some((option) => option.value === text)) item.add(new Option(text, text));
      item.value = text;
    }
  }
  form.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Remember that the form of this draft was sent. The next page, whose address ends with #started, removes the draft. */
export function sent(key) {
  sessionStorage.setItem(SENT, key);
}

if (location.hash === "#started") {
  localStorage.removeItem(sessionStorage.getItem(SENT));
  history.replaceState(null, "", location.pathname + location.search);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) document.querySelector("#start, #send")?.click();
});
