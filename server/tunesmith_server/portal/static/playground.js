// The playground: one prompt, the answers of up to four models, streamed into columns by one response.
import { load, restore, save } from "./draft.js";

const find = (selector, inside = document) => inside.querySelector(selector);
const form = find("#playground");
const key = form.dataset.draft;
const pairs = `pairs of ${key}`;
const columns = [...document.querySelectorAll(".answer")].map((box) => ({ box, history: [] }));
let shown = []; // columns of the last prompt
let system = [];
let running = null;

async function ask(event) {
  event.preventDefault();
  const settings = Object.fromEntries(new FormData(form));
  if (running || !settings.user.trim()) return;
  system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  columns.forEach((column, at) => {
    const model = settings[`model${at + 1}`].trim();
    if (model !== column.model) empty(column);
    column.model = model;
    column.box.hidden = !model;
  });
  shown = columns.filter(({ model }) => model);
  for (const column of shown) {
    column.history.push({ role: "user", content: settings.user });
    Object.assign(column, { text: "", done: false, asked: element("asked", ""), said: element("said", "") });
    column.said.setAttribute("aria-busy", "true");
    find(".turns", column.box).append(column.asked, column.said);
    tell(column, "Waiting for the first token; a model that is not loaded takes longer");
  }
  if (shown[0]?.said.getBoundingClientRect().bottom > innerHeight) shown[0].asked.scrollIntoView(); // below the window
  running = new AbortController();
  find("#stop").disabled = false;
  const body = { settings, columns: shown.map(({ model, history }) => ({ model, messages: [...system, ...history] })) };
  try {
    await read(body, running.signal);
  } catch (error) {
    const broken = running.signal.aborted ? null : { message: "The answer broke off.", hint: `Send the prompt again. ${error.message}` };
    for (const column of shown) if (!column.done) end(column, "Stopped", broken);
  }
  running = null;
  find("#stop").disabled = true;
  const isAnswered = shown.some(({ history }) => history.at(-1)?.role === "assistant");
  if (isAnswered) form.asked.value ||= settings.user;
  if (isAnswered && form.user.value === settings.user) form.user.value = "";
  save(form, key);
  find("#over").hidden = false;
}

async function read(body, signal) {
  const reply = await fetch("/portal/playground/answers", { method: "POST", body: JSON.stringify(body), signal });
  if (!reply.ok) return receive(await reply.json());
  let rest = "";
  for (const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader(); ;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) receive(JSON.parse(line));
  }
  if (shown.some((column) => !column.done)) throw new Error("");
}

function receive({ column: at, pieces = [], figures, done, error, differs, names, asked }) {
  const column = shown[at];
  names?.forEach((name, number) => {
    find("h2", shown[number].box).textContent = name;
    shown[number].asked.textContent = asked;
  });
  for (const piece of pieces) add(column, piece);
  if (column && figures) tell(column, figures);
  if (done) end(column, figures);
  if (error) for (const one of column ? [column] : shown) if (!one.done) end(one, "", error);
  differs?.forEach((numbers, number) => numbers.forEach((piece) => shown[number].said.children[piece].classList.add("differs")));
}

function add(column, { text, shown: visible, tone, detail }) {
  const span = document.createElement("span");
  span.textContent = visible ?? text;
  if (detail) {
    span.className = `p${tone}`;
    span.dataset.detail = detail;
    span.tabIndex = column.text ? -1 : 0;
  }
  column.text += text;
  column.said.append(span);
}

function end(column, figures, error = null) {
  const { history, text } = column;
  column.done = true;
  column.said.removeAttribute("aria-busy");
  if (error || !text) history.pop();
  else history.push({ role: "assistant", content: text });
  tell(column, figures, error);
  find("[data-better]", column.box).disabled = error || !text;
}

/** Show figures and, if an answer failed, why. */
function tell({ box }, figures, error) {
  find("[role=status]", box).textContent = figures;
  find("[data-better]", box).disabled = true;
  const failed = find(".failed", box);
  failed.hidden = !error;
  const { message, hint, retry_after: wait, code, request_id: id } = error ?? {};
  const lines = [message, hint, wait && `Send again after ${wait} s.`, code && `Code ${code}, request ${id}`];
  failed.replaceChildren(...lines.filter(Boolean).map((line) => element("", line)));
}

function element(name, text) {
  return Object.assign(document.createElement("p"), { className: name, textContent: text });
}

function empty(column) {
  column.history = [];
  find(".turns", column.box).replaceChildren();
  find(".detail", column.box).textContent = "";
  tell(column, "");
}

const rows = () => (localStorage.getItem(pairs) ?? "").split("\n").filter(Boolean);

/** Store an answer as better than each other answer to the same conversation, in OpenAI's format. */
function keep(best) {
  const before = ({ history }) => JSON.stringify([...system, ...history.slice(0, -1)]);
  const said = ({ text }) => [{ role: "assistant", content: text }];
  const worse = shown.filter((one) => one.text && one.text !== best.text && before(one) === before(best));
  const fresh = worse.map((one) => JSON.stringify({ input: { messages: JSON.parse(before(best)) }, preferred_output: said(best), non_preferred_output: said(one) }));
  localStorage.setItem(pairs, [...new Set([...rows(), ...fresh])].join("\n"));
  count(fresh.length ? "" : " No other answer to the same conversation differs from this one.");
}

function count(more) {
  const kept = rows();
  const link = find("#download");
  if (kept.length || more) find("#pairs").textContent = `${kept.length} pair${kept.length === 1 ? "" : "s"} in this browser.${more}`;
  link.hidden = find("#forget").hidden = !kept.length;
  URL.revokeObjectURL(link.href);
  link.href = URL.createObjectURL(new Blob([kept.join("\n"), "\n"]));
}

function begin() {
  const draft = load(key) ?? {};
  if (!location.search && draft.user !== undefined) restore(form, draft);
  form.user.value ||= draft.user || (draft.asked ?? ""); // too long for the address, or already sent
  form.system.value ||= draft.system ?? "";
  form.asked.value = "";
  const answers = find("#answers");
  form.addEventListener("input", () => save(form, key));
  form.addEventListener("submit", ask);
  find("#stop").addEventListener("click", () => running?.abort());
  document.addEventListener("keydown", ({ key: pressed }) => pressed === "Escape" && running?.abort());
  find("#over").addEventListener("click", () => {
    form.user.value ||= form.asked.value;
    form.asked.value = "";
    columns.forEach(empty);
    find("#over").hidden = true;
    form.user.focus();
  });
  find("#forget").addEventListener("click", () => {
    localStorage.removeItem(pairs);
    count(" All pairs are deleted.");
  });
  answers.addEventListener("click", ({ target }) => target.matches("[data-better]") && keep(columns.find(({ box }) => box.contains(target))));
  for (const name of ["focusin", "pointerover"]) answers.addEventListener(name, ({ target }) => {
    if (target.dataset.detail) find(".detail", target.closest(".answer")).textContent = target.dataset.detail;
  });
  answers.addEventListener("keydown", (event) => {
    const way = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
    if (!way || !event.target.dataset.detail) return;
    event.preventDefault();
    event.target[way]?.focus();
  });
  count("");
}

if (document.readyState === "complete") begin();
else addEventListener("load", begin);
