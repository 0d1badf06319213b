// The form of a new job: a draft kept in this browser, Ctrl Enter, problems at their fields.

const form = document.querySelector("#new-job");
const key = `draft:${location.search}`;
const SENT = "draft-sent";
let isSent = false;

function save() {
  try {
    localStorage.setItem(key, JSON.stringify(Object.fromEntries(new FormData(form))));
  } catch { /* no storage: the form works without a draft */ }
}

/** @param {Record<string, string>} draft */
function restore(draft) {
  for (const item of form.elements) {
    if (!item.name) continue;
    const text = draft[item.name];
    if (item.type === "radio" || item.type === "checkbox") item.checked = text === item.value;
    else if (text !== undefined) {
      if (item.options && ![...item.options].some((option) => option.value === text)) item.add(new Option(text, text));
      item.value = text;
    }
  }
}

/** Show each problem of the last check at its field. */
function place() {
  for (const error of form.querySelectorAll(".error")) tell(error.id.slice(2), "");
  for (const item of document.querySelectorAll("#check [data-field]")) tell(item.dataset.field, item.querySelector("p").textContent);
}

function tell(name, text) {
  const error = document.getElementById(`e-${name}`);
  if (!error) return;
  error.textContent = text;
  error.hidden = !text;
  document.getElementById(`f-${name}`)?.toggleAttribute("aria-invalid", false);
  if (text) document.getElementById(`f-${name}`)?.setAttribute("aria-invalid", "true");
}

function begin() {
  let draft = null;
  try {
    draft = JSON.parse(localStorage.getItem(key));
  } catch { /* a damaged draft counts as none */ }
  if ("shown" in form.dataset) save();
  else if (draft) {
    restore(draft);
    document.querySelector("#draft").hidden = false;
    form.dispatchEvent(new Event("input", { bubbles: true }));
    document.querySelector("#f-training_file")?.dispatchEvent(new Event("change"));
  }
  form.addEventListener("input", save);
  form.addEventListener("submit", (event) => {
    if (isSent) return event.preventDefault();
    isSent = true;
    save();
    sessionStorage.setItem(SENT, key);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(document.querySelector("#start"));
  });
  document.querySelector("#discard").addEventListener("click", () => {
    localStorage.removeItem(key);
    location.assign(location.href);
  });
  document.addEventListener("htmx:after:swap", place);
  addEventListener("pageshow", () => { isSent = false; });
}

if (location.hash === "#started") {
  localStorage.removeItem(sessionStorage.getItem(SENT));
  history.replaceState(null, "", location.pathname + location.search);
}
if (form) document.readyState === "complete" ? begin() : addEventListener("load", begin);
