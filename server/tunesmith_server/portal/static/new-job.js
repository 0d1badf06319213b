// The form of a new job: a draft kept in this browser, problems at their fields.
import { load, restore, save, sent } from "./draft.js";

let form = null;
const key = `draft:${location.search}`;

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
  form = document.querySelector("#new-job");
  if (!form) return;
  const draft = load(key);
  if ("shown" in form.dataset) save(form, key);
  else if (draft) {
    restore(form, draft);
    document.querySelector("#draft").hidden = false;
    document.querySelector("#f-training_file")?.dispatchEvent(new Event("change"));
  }
  form.addEventListener("input", () => save(form, key));
  form.addEventListener("submit", () => {
    save(form, key);
    sent(key);
  });
  document.querySelector("#discard").addEventListener("click", () => {
    localStorage.removeItem(key);
    location.assign(location.href);
  });
}

document.addEventListener("htmx:after:swap", () => form && place());
document.addEventListener("ts:page", begin);
document.readyState === "complete" ? begin() : addEventListener("load", begin);
