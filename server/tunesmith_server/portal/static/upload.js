// Uploads a chosen or dropped file to `data-upload` of its input, with progress. Its page opens
// then, or the select `data-into` gets it.

let running = null;

/** @param {HTMLInputElement} input @param {File} file */
function send(input, file) {
  const box = input.closest("[data-drop]");
  const [bar, share, told, stop, failed] = ["[data-progress]", "progress", "[role=status]", "[data-stop]", "[data-failed]"].map((name) => box.querySelector(name));
  const end = (text = "") => {
    running = null;
    bar.hidden = true;
    failed.hidden = !text;
    failed.textContent = text;
  };
  end();
  if (file.size > input.dataset.most) return end(`${file.name} is too large for this page. tunesmith files upload takes it.`);
  const request = running = new XMLHttpRequest();
  const show = (part) => {
    share.value = part;
    told.textContent = part < 1 ? `Uploading ${file.name}: ${Math.floor(part * 10) * 10} %` : `Storing ${file.name}`;
  };
  show(0);
  bar.hidden = false;
  stop.onclick = () => request.abort();
  request.upload.onprogress = (event) => show(event.loaded / event.total);
  request.onabort = () => end();
  request.onerror = () => end("The service does not answer. Nothing was stored.");
  request.onload = () => {
    const path = request.getResponseHeader("hx-redirect");
    const page = new DOMParser().parseFromString(request.responseText, "text/html");
    end(path ? "" : page.querySelector(".failed p")?.textContent ?? `The service answered ${request.status}.`);
    const into = document.getElementById(input.dataset.into);
    if (path && into && request.status === 204) choose(into, path.match(/file-\w+/)[0], file.name);
    else if (path) location.assign(path);
  };
  const form = new FormData();
  form.append("file", file);
  request.open("POST", input.dataset.upload);
  request.setRequestHeader("hx-request", "true");
  request.send(form);
}

function choose(select, id, name) {
  if (![...select.options].some((item) => item.value === id)) select.add(new Option(name, id));
  select.value = id;
  for (const kind of ["input", "change"]) select.dispatchEvent(new Event(kind, { bubbles: true }));
}

document.addEventListener("change", ({ target }) => {
  if (!target.dataset.upload || running) return;
  const [file] = target.files;
  target.value = "";
  if (file) send(target, file);
});
for (const kind of ["dragover", "dragleave", "drop"]) document.addEventListener(kind, (event) => {
  const box = event.target.closest?.("[data-drop]");
  if (!box) return;
  event.preventDefault();
  box.classList.toggle("is-over", kind === "dragover");
  const [file] = event.dataTransfer.files;
  if (kind === "drop" && file && !running) send(box.querySelector("[data-upload]"), file);
});
addEventListener("beforeunload", (event) => { if (running) event.preventDefault(); });
